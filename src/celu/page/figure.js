/* Shared by all figures of a page: elements, number formats, colours, tables.
   Text only ever becomes a text node, so names and messages cannot inject HTML. */
"use strict";
const Page = (() => {
  /** Create an element: el("td", {class: "number"}, "4.2", child). */
  function el(tag, attributes = {}, ...children) {
    const svg = ["svg", "g", "rect", "line", "text", "title", "defs", "pattern", "path"];
    const node = svg.includes(tag)
      ? document.createElementNS("http://www.w3.org/2000/svg", tag)
      : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (name === "style") node.style.cssText = value; // a style attribute would violate the content security policy
      else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value != null) node.setAttribute(name, value);
    }
    node.append(...children.filter((child) => child != null));
    return node;
  }

  /** The value of a style sheet colour in the current colour scheme. */
  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  }

  const NUM_COLOURS = 8;
  const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
  /** The name of a run's colour, the same in all figures. */
  const runColour = (run) => `series-${run % NUM_COLOURS}`;
  /** Series also differ by dash pattern, for readers who cannot tell the colours apart. */
  const dash = (run) => DASHES[(run + Math.floor(run / NUM_COLOURS)) % DASHES.length];

  /** A legend's sample of a run's line. */
  function swatch(run) {
    const line = el("line", {
      x1: 0, y1: 6, x2: 28, y2: 6, "stroke-width": 3, "stroke-dasharray": dash(run).join(" "),
      style: `stroke: var(--${runColour(run)})`,
    });
    const svg = el("svg", { class: "swatch", width: 28, height: 12, "aria-hidden": "true" });
    svg.append(line);
    return svg;
  }

  /** A number with about four significant digits. */
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

  /** A table. `rows` hold text, numbers or elements; `highlight(row, i)` selects rows; `full`: no inner scrolling. */
  function table(head, rows, { caption = null, highlight = () => false, full = false } = {}) {
    const cell = (tag, value, more = {}) => {
      const isNumber = typeof value === "number";
      const shown = value instanceof Node ? value : isNumber ? number(value) : (value ?? "–");
      const isLong = typeof value === "string" && value.length > 40;
      return el(tag, { ...more, class: isNumber ? "number" : isLong ? "text" : null }, shown);
    };
    const body = rows.map((row, i) =>
      el("tr", { class: highlight(row, i) ? "differs" : null },
        ...row.map((value, column) =>
          column === 0 ? cell("th", value, { scope: "row" }) : cell("td", value))));
    const numeric = (column) => rows.length > 0 && typeof rows[0][column] === "number";
    return el("div", { class: full ? "scroll full" : "scroll", tabindex: "0" },
      el("table", {},
        caption && el("caption", {}, caption),
        el("thead", {}, el("tr", {}, ...head.map((name, column) =>
          el("th", { scope: "col", class: numeric(column) ? "number" : null }, name)))),
        el("tbody", {}, ...body)));
  }

  /** Replace a container's content, and restore its scroll position and focus. */
  function replaceContent(container, node) {
    const before = container.querySelector(".scroll");
    const focused = before !== null && before === document.activeElement;
    const at = before && { top: before.scrollTop, left: before.scrollLeft };
    container.replaceChildren(node);
    const after = container.querySelector(".scroll");
    if (after && at) Object.assign(after, { scrollTop: at.top, scrollLeft: at.left });
    if (after && focused) after.focus({ preventScroll: true });
  }

  /** A figure: a title, an area to draw in, a caption, and its data in a table.
      `makeTable` is called when the reader opens the table. */
  function figure(title, makeTable) {
    const plot = el("div", { class: "plot", role: "img" });
    const readout = el("output", { class: "readout", "aria-hidden": "true" });
    const caption = el("figcaption");
    const holder = el("div");
    const details = el("details", { ontoggle: fill }, el("summary", {}, "Data table"), holder);
    const root = el("figure", {}, el("h3", {}, title), readout, plot, caption, details);
    function fill() {
      if (details.open) replaceContent(holder, makeTable());
      else holder.replaceChildren();
    }
    return {
      root, plot, readout,
      /** Set the caption, which screen readers announce too. */
      setCaption(text) {
        caption.textContent = text;
        plot.setAttribute("aria-label", `${title}: ${text}`);
        fill();
      },
    };
  }

  /** At most `max` items of a list, evenly spaced, with the first and the last. */
  function sample(list, max) {
    if (list.length <= max) return list;
    const step = (list.length - 1) / (max - 1);
    return Array.from({ length: max }, (_, i) => list[Math.round(i * step)]);
  }

  /** Redraw when a container's width or the page's colour scheme changes. */
  function onResizeOrTheme(container, redraw) {
    let width = container.clientWidth;
    new ResizeObserver(() => {
      if (container.clientWidth !== width) {
        width = container.clientWidth;
        redraw();
      }
    }).observe(container);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  }

  const data = JSON.parse(document.getElementById("data")?.textContent || "null");
  return {
    el, colour, runColour, dash, swatch, number, bytes, seconds, share, table, figure,
    replaceContent, sample, onResizeOrTheme, data,
  };
})();
