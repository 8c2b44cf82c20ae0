/* What all figures of a page share: elements, numbers as people read them, colours, tables.
   Text only ever becomes a text node: whatever a name holds, it is shown and not run. */
"use strict";
const Page = (() => {
  /** An element: el("td", {class: "number"}, "4.2", another). */
  function el(tag, attributes = {}, ...children) {
    const svg = ["svg", "g", "rect", "line", "text", "title", "defs", "pattern", "path"];
    const node = svg.includes(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") node.style.cssText = value; // as an attribute, a strict policy forbids it
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child != null));
    return node;
  }

  /** The value of a colour of the style sheet, as it is in the scheme that holds now. */
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  const LINES = 8;
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  /** Run i's colour by name, the same in all figures. */
  const lineColour = (run) => `line-${run % LINES}`;
  /** Few lines also differ by their dashes, for whoever cannot tell the colours apart. */
  const dash = (run) => DASHES[(run + Math.floor(run / LINES)) % DASHES.length];

  /** A stroke as it is drawn in the charts, for legends. */
  function swatch(run) {
    const line = el("line", {
      x1: 0, y1: 6, x2: 28, y2: 6, "stroke-width": 3, "stroke-dasharray": dash(run).join(" "),
      style: `stroke: var(--${lineColour(run)})`,
    });
    const svg = el("svg", { class: "swatch", width: 28, height: 12, "aria-hidden": "true" });
    svg.append(line);
    return svg;
  }

  /** A number with about four digits that say something. */
  function number(value) {
    if (value == null || Number.isNaN(value)) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    const size = Math.abs(value);
    if (size >= 1000) return Math.round(value).toLocaleString("en");
    return size >= 1e-4 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
  }
  function bytes(value) {
    if (value == null) return "–";
    for (const [unit, size] of [["TB", 1e12], ["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) {
      if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(3))} ${unit}`;
    }
    return `${Math.round(value)} B`;
  }
  function seconds(value) {
    if (value == null) return "–";
    if (value >= 7200) return `${Number((value / 3600).toPrecision(3))} h`;
    if (value >= 300) return `${Number((value / 60).toPrecision(3))} min`;
    if (value >= 1 || value === 0) return `${Number(value.toPrecision(3))} s`;
    return `${Number((value * 1000).toPrecision(3))} ms`;
  }
  const share = (value) => (value == null ? "–" : `${Math.round(100 * value)}%`);

  /** A table. `rows` hold text, numbers or elements; `marked(row, i)` says which stand out. */
  function table(head, rows, { caption = null, marked = () => false, whole = false } = {}) {
    const cell = (tag, value, more = {}) => {
      const isNumber = typeof value === "number";
      const shown = value instanceof Node ? value : isNumber ? number(value) : (value ?? "–");
      const isLong = typeof value === "string" && value.length > 40;
      return el(tag, { ...more, class: isNumber ? "number" : isLong ? "words" : null }, shown);
    };
    const body = rows.map((row, i) =>
      el("tr", { class: marked(row, i) ? "differs" : null },
        ...row.map((value, column) =>
          column === 0 ? cell("th", value, { scope: "row" }) : cell("td", value))));
    const numeric = (column) => rows.length > 0 && typeof rows[0][column] === "number";
    return el("div", { class: whole ? "scroll whole" : "scroll", tabindex: "0" },
      el("table", {},
        caption && el("caption", {}, caption),
        el("thead", {}, el("tr", {}, ...head.map((name, column) =>
          el("th", { scope: "col", class: numeric(column) ? "number" : null }, name)))),
        el("tbody", {}, ...body)));
  }

  /** Have a place hold something new; what was focused and scrolled stays so. */
  function put(place, node) {
    const before = place.querySelector(".scroll");
    const focused = before !== null && before === document.activeElement;
    const at = before && { top: before.scrollTop, left: before.scrollLeft };
    place.replaceChildren(node);
    const after = place.querySelector(".scroll");
    if (after && at) Object.assign(after, { scrollTop: at.top, scrollLeft: at.left });
    if (after && focused) after.focus({ preventScroll: true });
  }

  /** A figure: a title, a place to draw, what it shows in words, and its numbers in a table.
      `table` makes the table when it is asked for; `aria` is what a screen reader says. */
  function figure(title, tableOf) {
    const plot = el("div", { class: "plot", role: "img" });
    const readout = el("output", { class: "readout", "aria-hidden": "true" });
    const caption = el("figcaption");
    const numbers = el("div");
    const details = el("details", { ontoggle: fill }, el("summary", {}, "The numbers"), numbers);
    const root = el("figure", {}, el("h3", {}, title), readout, plot, caption, details);
    function fill() {
      if (details.open) put(numbers, tableOf());
      else numbers.replaceChildren();
    }
    return {
      root, plot, readout,
      /** What it shows now, in words. */
      say(words) {
        caption.textContent = words;
        plot.setAttribute("aria-label", `${title}: ${words}`);
        fill();
      },
    };
  }

  /** At most `most` of a list, evenly, the last one included. */
  function some(list, most) {
    if (list.length <= most) return list;
    const step = (list.length - 1) / (most - 1);
    return Array.from({ length: most }, (_, i) => list[Math.round(i * step)]);
  }

  /** Call when a place changes its width, or the page its colours. */
  function whenItChanges(place, redraw) {
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth !== width) {
        width = place.clientWidth;
        redraw();
      }
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  const data = JSON.parse(document.getElementById("data")?.textContent || "null");
  return {
    el, colour, lineColour, dash, swatch, number, bytes, seconds, share, table, figure, put, some,
    whenItChanges, data,
  };
})();
