/* Runs side by side: one legend, one axis and the same figures on all pages that show runs.

   A run is an object with a label, figures, and lines whose points have a round, bytes and seconds.
   A page that follows runs changes these objects, and calls `redraw`. */
"use strict";
const Runs = (() => {
  const { el, swatch, number, bytes, seconds, share, table, put } = Page;
  const AXES = {
    round: { name: "rounds", x: "round", format: number, at: (n) => `round ${number(n)}`, whole: true },
    bytes: { name: "bytes", x: "bytes", format: bytes, at: bytes },
    seconds: { name: "time", x: "time", format: seconds, at: seconds },
  };
  const LOWER = new Set(["loss", "rmse"]); // is better
  const last = (list) => list[list.length - 1];
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  const tenth = (value) => number(Number(value.toFixed(1)));
  const sentence = (parts) => parts.join("; ") + (parts.length ? "." : "");

  /** Those points whose x ascends: where a run went back, what came later holds. */
  function ascending(x, ...columns) {
    const kept = [];
    x.forEach((value, i) => {
      while (kept.length && x[kept[kept.length - 1]] >= value) kept.pop();
      kept.push(i);
    });
    return [x, ...columns].map((column) => kept.map((i) => column[i]));
  }

  /** Where to end a y axis whose few highest points would flatten all others; null: nowhere. */
  function ceiling(lines) {
    const sorted = lines.flatMap((line) => line.y).sort((a, b) => a - b);
    const usual = sorted[Math.floor(0.98 * (sorted.length - 1))];
    return usual > 0 && last(sorted) > 5 * usual ? 1.2 * usual : null;
  }

  function best(line, lowest) {
    let at = 0;
    line.y.forEach((value, i) => {
      if (lowest ? value < line.y[at] : value > line.y[at]) at = i;
    });
    return at;
  }

  /** One of several, by radio buttons. */
  function radios(parent, name, choices, chosen, choose) {
    for (const [value, words] of Object.entries(choices)) {
      parent.append(el("label", {},
        el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }),
        el("span", {}, words)));
    }
  }

  /** Put a figure among those of a section, by its rank. */
  function place(section, root, rank) {
    root.dataset.rank = rank;
    const next = [...section.children].find((other) => Number(other.dataset.rank) > rank);
    section.insertBefore(root, next || null);
  }

  const FIGURES = [
    ["party", (f) => f.party],
    ["ended", (f) => (f.status === "running" ? "not yet, or without a word" : f.status)],
    ["rounds", (f) => f.rounds],
    ["time", (f) => f.seconds == null ? null : seconds(f.seconds) + (f.virtual ? " (virtual)" : "")],
    ["time left, at this pace", (f) => f.left_s == null ? null : seconds(f.left_s)],
    ["bytes left, at this pace", (f) => f.left_bytes == null ? null : bytes(f.left_bytes)],
    ["a round, on average", (f) => f.round_s == null ? null : seconds(f.round_s)],
    ["a round, of late", (f) => f.late_round_s == null ? null : seconds(f.late_round_s)],
    ["waiting for messages", (f) => f.waited == null ? null : share(f.waited)],
    ["waiting, of late", (f) => f.late_waited == null ? null : share(f.late_waited)],
    ["link in use, sending, of late", (f) => f.sending == null ? null : share(f.sending)],
    ["link in use, receiving, of late", (f) => f.receiving == null ? null : share(f.receiving)],
    ["evaluating", (f) => f.evaluating_s == null ? null : seconds(f.evaluating_s)],
    ["best held-out metric", (f) => f.best == null ? null
      : `${f.metric} ${number(f.best)} at round ${number(f.best_round)}, ${seconds(f.best_seconds)}`],
    ["last", (f) => f.final == null ? null : `${f.metric} ${number(f.final)}`],
    ["sent in training", (f) => f.bytes_sent == null ? null : bytes(f.bytes_sent)],
    ["received in training", (f) => f.bytes_received == null ? null : bytes(f.bytes_received)],
    ["for evaluation", (f) => f.evaluation_bytes == null ? null : bytes(f.evaluation_bytes)],
    ["local steps", (f) => f.local_steps == null ? null : number(f.local_steps)],
    ["local steps a round, of late", (f) => f.late_steps == null ? null : tenth(f.late_steps)],
    ["bubbles", (f) => f.bubbles == null ? null : number(f.bubbles)],
    ["bubbles a round, of late", (f) => f.late_bubbles == null ? null : tenth(f.late_bubbles)],
    ["times started", (f) => number(f.attempts)],
  ];

  /** The figures of some runs. Each function fills a section; `redraw` draws all of them anew. */
  function view(runs) {
    const hidden = new Set();
    const draws = [];
    let axis = "round";

    function add(draw) {
      draw();
      draws.push(draw);
    }
    const redraw = () => draws.forEach((draw) => draw());
    const visible = (lines) => lines.filter((line) => line.x.length && !hidden.has(line.run));
    const onAxis = (over) => ({
      x: AXES[over].x, formatX: AXES[over].format, whole: AXES[over].whole, hidden: new Set(hidden),
    });

    function bar(legend, over) {
      runs.forEach((run, i) => {
        const box = el("input", {
          type: "checkbox", checked: true, value: i,
          onchange: () => {
            if (box.checked) hidden.delete(i);
            else hidden.add(i);
            redraw();
          },
        });
        legend.append(el("label", {}, box, swatch(i), el("span", {}, run.label)));
      });
      radios(over, "over", Object.fromEntries(Object.entries(AXES).map(([k, v]) => [k, v.name])), axis,
        (chosen) => { axis = chosen; redraw(); });
    }

    /** A figure of one line a run: `pick` finds its points. With `clips`, rare heights are cut off.
        It is there as soon as a run has a point. */
    function lineFigure(grid, spec, pick, { words, rank = 0, fixed = null, clips = false }) {
      let chart = null;
      let top = null;
      const range = (_, low, high) => {
        const [from, to] = uPlot.rangeNum(low, top ?? high, 0.1, true);
        return [from, top ?? to];
      };
      add(() => {
        const over = fixed || axis;
        const lines = runs.map((run, i) => {
          const points = pick(run) || {};
          const [x, y] = ascending(points[over] || [], points.y || []);
          return { name: run.label, run: i, x, y };
        }).filter((line) => line.x.length);
        if (!chart && !lines.length) return;
        if (!chart) {
          chart = Charts.lines({ ...spec, range });
          place(grid, chart.root, rank);
        }
        const said = visible(lines).map((line) => `${line.name}: ${words(line, AXES[over].at)}`);
        top = clips ? ceiling(visible(lines)) : null;
        if (top !== null) said.push("the highest points are beyond the figure");
        chart.set({ ...onAxis(over), lines, words: sentence(said) });
      });
    }

    function learning(section) {
      const grid = section.querySelector(".grid");
      const nothing = el("p", { class: "faint" },
        "No evaluation yet: only the guest's folder has loss and metrics.");
      section.append(nothing);
      const known = new Set();
      add(() => {
        for (const name of runs.flatMap((run) => Object.keys(run.held_out))) {
          if (known.has(name)) continue;
          known.add(name);
          const shown = name === "auc" ? "AUC" : name;
          lineFigure(grid, { title: `Held-out ${shown}`, y: shown }, (run) => run.held_out[name], {
            clips: LOWER.has(name), rank: LOWER.has(name) ? 1 : 0, // the metric first, then the losses
            words: (line, where) => {
              const at = best(line, LOWER.has(name));
              return `best ${number(line.y[at])} at ${where(line.x[at])}, last ${number(last(line.y))}`;
            },
          });
        }
      });
      lineFigure(grid, { title: "Training loss", y: "loss" }, (run) => run.loss, {
        clips: true, rank: 2, words: (line) => `from ${number(line.y[0])} to ${number(last(line.y))}`,
      });
      add(() => { nothing.hidden = grid.children.length > 0; });
    }

    function similarity(grid) {
      let chart = null;
      add(() => {
        const lines = runs.map((run, i) => {
          const { quantiles } = run.similarity;
          if (!quantiles.length) return null;
          const [x, , low, q25, median, q75, high] = ascending(run.similarity[axis], ...quantiles);
          return {
            name: run.label, run: i, x, y: median,
            bands: [
              { low: q25, high: q75, alpha: 0.28, lowName: "quarter", highName: "three quarters" },
              { low, high, alpha: 0.1, lowName: "tenth", highName: "highest" },
            ],
          };
        }).filter((line) => line !== null);
        if (!chart && !lines.length) return;
        if (!chart) {
          chart = Charts.lines({
            title: "Cosine similarity of cached batches: median, quartiles, tenth to highest", y: "median",
          });
          place(grid, chart.root, 0);
        }
        const said = visible(lines).map((line) => `${line.name}: median ${number(line.y[0])} at first, ` +
          `${number(last(line.y))} at last, a tenth below ${number(last(line.bands[1].low))}`);
        chart.set({ ...onAxis(axis), lines, words: sentence(said) });
      });
    }

    function cache(section) {
      const grid = section.querySelector(".grid");
      similarity(grid);
      lineFigure(grid, { title: "Age of the batches that local steps used, in rounds", y: "rounds" },
        (run) => run.staleness,
        { rank: 1, words: (line) => `${number(Number(mean(line.y).toFixed(2)))} on average` });
      add(() => { section.hidden = !grid.children.length; });
    }

    function link(section) {
      const grid = section.querySelector(".grid");
      [["sent", "Sent"], ["received", "Received"]].forEach(([way, title], rank) => {
        lineFigure(grid, { title: `${title} in training, Mbps`, y: "Mbps" }, (run) => run[way], {
          rank, fixed: "seconds",
          words: (line) => `${number(Number(mean(line.y).toPrecision(3)))} Mbps on average`,
        });
      });
      add(() => { section.hidden = !grid.children.length; });
    }

    /** Some rounds closely: `windows()` gives [{run, first, last, seconds, spans}]. */
    function time(section, windows) {
      const chart = Gantt.gantt("What each party did, and what its link carried");
      section.append(chart.root);
      add(() => {
        const shown = windows().filter((window) => !hidden.has(window.run));
        const to = Math.max(1e-6, ...shown.map((window) => window.seconds));
        const groups = shown.map((window) => ({
          name: `${runs[window.run].label}, rounds ${window.first} to ${window.last}`,
          run: window.run, spans: window.spans,
        }));
        const words = shown.map((window) => {
          const waited = window.spans.filter(([what]) => what === "wait")
            .reduce((sum, [, from, until]) => sum + until - from, 0);
          const count = window.last - window.first + 1;
          return `${runs[window.run].label}: ${seconds(window.seconds / count)} a round, ` +
            `${share(waited / window.seconds)} of it waiting`;
        });
        chart.set({ groups, from: 0, to, words: sentence(words) });
      });
    }

    /** The figures of each run, but for those that are named. */
    function summary(holder, without = []) {
      const shown = FIGURES.filter(([name]) => !without.includes(name));
      add(() => {
        const rows = shown.map(([name, of]) => [name, ...runs.map((run) => of(run.figures))])
          .filter((row) => row.slice(1).some((value) => value != null));
        put(holder, table(["", ...runs.map((run) => run.label)], rows, { whole: true }));
      });
    }

    /** What is amiss in each run, and what to do about it. */
    function warnings(holder) {
      add(() => {
        const found = runs.flatMap((run) => run.warnings.map((warning) => [run.label, ...warning]));
        put(holder, found.length
          ? el("ul", { class: "warnings" }, ...found.map(([label, what, words, change]) =>
            el("li", {},
              el("p", {}, el("strong", {}, `${label}, ${what}: `), words),
              change && el("p", { class: "faint" }, change))))
          : el("p", { class: "good" }, "Nothing is amiss."));
      });
    }

    function happened(holder) {
      add(() => {
        const rows = runs.flatMap((run) =>
          run.happened.map(([t, what, words]) => [run.label, seconds(t), what, words]));
        put(holder, rows.length
          ? table(["run", "after", "what", ""], rows)
          : el("p", { class: "faint" }, "No outage, no restart, no warning."));
      });
    }

    return { hidden, add, redraw, bar, learning, cache, link, time, summary, warnings, happened };
  }

  return { view, radios };
})();
