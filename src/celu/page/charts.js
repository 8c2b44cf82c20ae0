/* Line charts on uPlot, with bands around the lines.

   A series is {name, run, x, y}: `run` selects its colour and dash pattern, and is what a legend
   shows or hides. It may have bands [{low, high, alpha}]. x ascends; null in y is a gap. */
"use strict";
const Charts = (() => {
  const { el, colour, runColour, dash, number, table, figure, sample, onResizeOrTheme } = Page;
  const HEIGHT = 240;
  const MAX_ROWS = 200; // of a data table
  const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((n) => [1, 2, 5].map((m) => m * 10 ** n)); // axis increments

  function withAlpha(hex, alpha) {
    const part = (at) => parseInt(hex.slice(at, at + 2), 16);
    return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
  }

  /** A line chart: {title, y: the y axis's name, formatY, range: as in uPlot}. Append `root`, then `set`. */
  function lineChart(spec) {
    const formatY = spec.formatY || number;
    let shown = { x: "x", formatX: number, series: [], hidden: new Set() };
    let plot = null;
    let plottedShape = ""; // the shape() that the plot was made for
    const fig = figure(spec.title, dataTables);

    function dataTables() {
      const parts = shown.series.map((one) => {
        const at = sample(one.x.map((_, i) => i), MAX_ROWS);
        const bands = (one.bands || []).flatMap((band) => [band.low, band.high]);
        const rows = at.map((i) => [one.x[i], one.y[i], ...bands.map((values) => values[i])]);
        const names = (one.bands || []).flatMap((b) => [b.lowName || "low", b.highName || "high"]);
        const caption = `${one.name}` + (one.x.length > MAX_ROWS ? `, ${MAX_ROWS} of ${one.x.length} points` : "");
        return table([shown.x, spec.y || "value", ...names], rows, { caption });
      });
      return el("div", {}, ...parts);
    }

    function plotSeries() {
      const series = [{}];
      const bands = [];
      for (const one of shown.series) {
        const stroke = runColour(one.run);
        const show = !shown.hidden.has(one.run);
        series.push({
          label: one.name, show, spanGaps: true, width: 2,
          stroke: () => colour(stroke), dash: dash(one.run),
          points: { show: one.x.length < 2, size: 6, fill: () => colour(stroke) },
        });
        for (const band of one.bands || []) {
          const first = series.length;
          for (const label of ["high", "low"]) {
            series.push({ label, show, spanGaps: true, width: 0, points: { show: false }, stroke: "transparent" });
          }
          bands.push({ series: [first, first + 1], fill: () => withAlpha(colour(stroke), band.alpha) });
        }
      }
      return { series, bands };
    }

    function plotData() {
      if (!shown.series.length) return [[]];
      return uPlot.join(shown.series.map((one) =>
        [one.x, one.y, ...(one.bands || []).flatMap((band) => [band.high, band.low])]));
    }

    function showReadout(u) {
      const at = u.cursor.idx;
      if (at == null) {
        fig.readout.textContent = "";
        return;
      }
      const values = [];
      u.series.forEach((one, i) => {
        if (i === 0 || !one.show || one.label === "high" || one.label === "low") return;
        let j = at; // series have different x values: take this one's last point up to here
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
      const hasPoints = shown.series.some((one) => one.x.length > 0);
      plot?.destroy();
      plot = null;
      fig.plot.replaceChildren();
      plottedShape = shape();
      if (!hasPoints) {
        fig.plot.append(el("p", { class: "empty" }, "No data in these runs."));
        return;
      }
      plot = new uPlot({
        width: Math.max(200, fig.plot.clientWidth), height: HEIGHT, ...plotSeries(),
        legend: { show: false }, padding: [8, 12, 0, 0],
        cursor: { y: false, drag: { x: true, y: false } },
        scales: { x: { time: false }, y: spec.range ? { range: spec.range } : {} },
        axes: [{ ...axis(shown.formatX, 34), space: 70, ...(shown.whole && { incrs: WHOLE }) }, axis(formatY, 58)],
        hooks: { setCursor: [showReadout] },
      }, plotData(), fig.plot);
    }

    /** What a plot is made for; while this stays the same, it only needs new data. */
    function shape() {
      return JSON.stringify([shown.x, [...shown.hidden], shown.series.map((one) =>
        [one.name, one.run, (one.bands || []).length, one.x.length > 1])]);
    }

    onResizeOrTheme(fig.plot, draw);
    return {
      root: fig.root,
      /** Show series over an x axis: {x: its name, formatX, whole: whether x takes whole numbers only,
          series, hidden: a Set of runs to hide, caption}. */
      set(next) {
        shown = { formatX: number, hidden: new Set(), ...next };
        if (plot && shape() === plottedShape) plot.setData(plotData());
        else draw();
        fig.setCaption(next.caption || "");
      },
    };
  }

  return { lineChart };
})();
