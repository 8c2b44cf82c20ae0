/* A Gantt chart: one group per party, with lanes of spans [kind, from, to]. */
"use strict";
const Gantt = (() => {
  const { el, seconds, table, figure, onResizeOrTheme } = Page;
  const LANE = 18, GAP = 3, HEAD = 20, AXIS = 22;
  const NAMES = {
    compute: "exchanged batch", local: "local steps", encode: "codec", wait: "waiting for messages",
    evaluate: "evaluation", send: "sending", receive: "receiving",
  };
  // One thread does all of the first lane; the link sends and receives concurrently.
  const LANES = [
    ["computing", ["compute", "local", "encode", "wait", "evaluate"]],
    ["sending", ["send"]],
    ["receiving", ["receive"]],
  ];

  function legend() {
    return el("ul", { class: "key" }, ...Object.entries(NAMES).map(([kind, name]) => {
      const svg = el("svg", { class: "swatch", width: 14, height: 12, "aria-hidden": "true" });
      svg.append(el("rect", { width: 14, height: 12, rx: 2, style: `fill: var(--${kind})` }));
      return el("li", {}, svg, name);
    }));
  }

  /** About `count` ticks of a time axis, at round numbers. */
  function ticks(from, to, count) {
    const rough = (to - from) / count;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    const found = [];
    for (let i = Math.ceil(from / step); i * step <= to + step * 1e-6; i += 1) found.push(i * step);
    return found;
  }

  /** A chart. Append `root`, then `set` groups: {groups: [{name, run, spans}], from, to, caption}. */
  function gantt(title) {
    let shown = { groups: [], from: 0, to: 1 };
    const fig = figure(title, dataTable);
    fig.readout.replaceWith(legend());

    function dataTable() {
      const rows = shown.groups.flatMap((group) => group.spans.map(([kind, from, to]) =>
        [group.name, NAMES[kind] || kind, seconds(from), seconds(to - from)]));
      return table(["party", "activity", "start", "duration"], rows);
    }

    function draw() {
      fig.plot.replaceChildren();
      if (!shown.groups.some((group) => group.spans.length)) {
        fig.plot.append(el("p", { class: "empty" }, "No timings were recorded in these runs."));
        return;
      }
      const width = Math.max(200, fig.plot.clientWidth);
      const left = width < 600 ? 64 : 84;
      const at = (time) => left + ((time - shown.from) / (shown.to - shown.from)) * (width - left - 8);
      const groupHeight = HEAD + LANES.length * (LANE + GAP) + 6;
      const height = shown.groups.length * groupHeight + AXIS;
      const svg = el("svg", { width, height, viewBox: `0 0 ${width} ${height}` });
      const axis = el("g", { class: "axis" });
      for (const time of ticks(shown.from, shown.to, Math.max(2, width / 110))) {
        axis.append(
          el("line", { x1: at(time), x2: at(time), y1: 0, y2: height - AXIS }),
          el("text", { x: at(time), y: height - 7, "text-anchor": "middle" },
            seconds(Number(time.toPrecision(12)))));
      }
      svg.append(axis);
      shown.groups.forEach((group, i) => svg.append(drawGroup(group, i * groupHeight, at, left)));
      fig.plot.append(svg);
    }

    function drawGroup(group, top, at, left) {
      const node = el("g", {});
      node.append(el("text", { x: 0, y: top + HEAD - 6, style: "font-weight: 600; font-size: 12px" }, group.name));
      LANES.forEach(([lane, kinds], i) => {
        const y = top + HEAD + i * (LANE + GAP);
        node.append(el("text", { x: 0, y: y + 13 }, lane));
        for (const [kind, from, to] of group.spans) {
          if (!kinds.includes(kind) || to <= shown.from || from >= shown.to) continue;
          const x = Math.max(left, at(from));
          const barWidth = Math.max(0.75, Math.min(at(shown.to), at(to)) - x);
          node.append(el("rect", { x, y, width: barWidth, height: LANE, style: `fill: var(--${kind})` },
            el("title", {}, `${NAMES[kind]}: at ${seconds(from)}, for ${seconds(to - from)}`)));
        }
      });
      return node;
    }

    onResizeOrTheme(fig.plot, draw);
    return {
      root: fig.root,
      set(next) {
        shown = next;
        draw();
        fig.setCaption(next.caption || "");
      },
    };
  }

  return { gantt };
})();
