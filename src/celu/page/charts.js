/* Charts of lines, with bands around them, on uPlot.

   A line is {name, run, x, y}: `run` gives it its colour and dashes, and is what a legend shows or
   hides. It may have bands [{low, high, alpha}], and may itself be thin ({thin: true}).
   x ascends; null in y is a gap. */
"use strict";
const Charts = (() => {
  const { el, colour, lineColour, dash, number, table, figure, some, whenItChanges } = Page;
  const HEIGHT = 240;
  const ROWS = 200; // of a data table
  const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((n) => [1, 2, 5].map((m) => m * 10 ** n)); // steps of an axis

  function withAlpha(hex, alpha) {
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
  }

  /** A chart of lines: {title, y: what y is, formatY, range: as uPlot's}. Append `root`, then `set`. */
  function lines(spec) {
    const formatY = spec.formatY || number;
    let shown = { x: "x", formatX: number, lines: [], hidden: new Set() };
    let plot = null;
    let drawn = ""; // which series the plot has
    const fig = figure(spec.title, numbers);

    function numbers() {
      const parts = shown.lines.map((line) => {
        const at = some(line.x.map((_, i) => i), ROWS);
        const bands = (line.bands || []).flatMap((band) => [band.low, band.high]);
        const rows = at.map((i) => [line.x[i], line.y[i], ...bands.map((values) => values[i])]);
        const names = (line.bands || []).flatMap((b) => [b.lowName || "low", b.highName || "high"]);
        const caption = `${line.name}` + (line.x.length > ROWS ? `, ${ROWS} of ${line.x.length} points` : "");
        return table([shown.x, spec.y || "value", ...names], rows, { caption });
      });
      return el("div", {}, ...parts);
    }

    function series() {
      const found = [{}];
      const bands = [];
      for (const line of shown.lines) {
        const stroke = lineColour(line.run);
        const show = !shown.hidden.has(line.run);
        found.push({
          label: line.name, show, spanGaps: true, width: line.thin ? 1 : 2,
          stroke: () => colour(stroke), dash: dash(line.run),
          points: { show: line.x.length < 2, size: 6, fill: () => colour(stroke) },
        });
        for (const band of line.bands || []) {
          const first = found.length;
          for (const label of ["high", "low"]) {
            found.push({ label, show, spanGaps: true, width: 0, points: { show: false }, stroke: "transparent" });
          }
          bands.push({ series: [first, first + 1], fill: () => withAlpha(colour(stroke), band.alpha) });
        }
      }
      return { found, bands };
    }

    function joined() {
      if (!shown.lines.length) return [[]];
      return uPlot.join(shown.lines.map((line) =>
        [line.x, line.y, ...(line.bands || []).flatMap((band) => [band.high, band.low])]));
    }

    function read(u) {
      const at = u.cursor.idx;
      if (at == null) {
        fig.readout.textContent = "";
        return;
      }
      const values = [];
      u.series.forEach((one, i) => {
        if (i === 0 || !one.show || one.label === "high" || one.label === "low") return;
        let j = at; // lines have points of their own: the last one that this line has
        while (j >= 0 && u.data[i][j] == null) j -= 1;
        if (j >= 0) values.push(`${one.label} ${formatY(u.data[i][j])}`);
      });
      fig.readout.textContent = `${shown.x} ${shown.formatX(u.data[0][at])}: ${values.join(" · ")}`;
    }

    function axis(format, size) {
      return {
        stroke: () => colour("faint"), size, font: "11px system-ui, sans-serif",
        grid: { stroke: () => colour("rule"), width: 1 },
        ticks: { stroke: () => colour("rule"), width: 1 },
        values: (u, splits) => splits.map((value) => (value == null ? "" : format(value))),
      };
    }

    function draw() {
      const { found, bands } = series();
      const points = shown.lines.some((line) => line.x.length > 0);
      plot?.destroy();
      plot = null;
      fig.plot.replaceChildren();
      drawn = shape();
      if (!points) {
        fig.plot.append(el("p", { class: "empty" }, spec.empty || "nothing of it in these runs"));
        return;
      }
      plot = new uPlot({
        width: Math.max(200, fig.plot.clientWidth), height: HEIGHT, series: found, bands,
        legend: { show: false }, padding: [8, 12, 0, 0],
        cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: spec.range ? { range: spec.range } : {} },
        axes: [{ ...axis(shown.formatX, 34), space: 70, ...(shown.whole && { incrs: WHOLE }) }, axis(formatY, 58)],
        hooks: { setCursor: [read] },
      }, joined(), fig.plot);
    }

    /** What the plot was made for; if that is the same, new points will do. */
    function shape() {
      return JSON.stringify([shown.x, [...shown.hidden], shown.lines.map((line) =>
        [line.name, line.run, (line.bands || []).length, line.x.length > 1])]);
    }

    whenItChanges(fig.plot, draw);
    return {
      root: fig.root,
      /** Show lines over an x axis: {x: its name, formatX, whole: whether it has whole numbers only,
          lines, hidden: a Set of runs not to show, words}. */
      set(next) {
        shown = { formatX: number, hidden: new Set(), ...next };
        if (plot && shape() === drawn) plot.setData(joined());
        else draw();
        fig.say(next.words || "");
      },
    };
  }

  return { lines };
})();
