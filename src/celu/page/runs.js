/* Runs side by side: the legend, x axis and figures of every page that shows runs.

   A run is an object with a label, a summary, and series whose points have a round, bytes and
   seconds. A page that follows live runs updates these objects and calls `redraw`. */
"use strict";
const Runs = (() => {
  const { el, swatch, number, bytes, seconds, share, table, replaceContent } = Page;
  const AXES = {
    round: { name: "rounds", x: "round", format: number, at: (n) => `round ${number(n)}`, whole: true },
    bytes: { name: "bytes", x: "bytes", format: bytes, at: bytes },
    seconds: { name: "time", x: "time", format: seconds, at: seconds },
  };
  const last = (list) => list[list.length - 1];
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;
  const oneDecimal = (value) => number(Number(value.toFixed(1)));
  const joinParts = (parts) => parts.join("; ") + (parts.length ? "." : "");

  /** The points whose x ascends: where a run was rolled back, later points replace earlier ones. */
  function ascending(x, ...columns) {
    const indices = [];
    x.forEach((value, i) => {
      while (indices.length && x[last(indices)] >= value) indices.pop();
      indices.push(i);
    });
    return [x, ...columns].map((column) => indices.map((i) => column[i]));
  }

  /** The top of a y axis whose few highest points would flatten the rest; null for no limit. */
  function yLimit(series) {
    const sorted = series.flatMap((one) => one.y).sort((a, b) => a - b);
    const usual = sorted[Math.floor(0.98 * (sorted.length - 1))];
    return usual > 0 && last(sorted) > 5 * usual ? 1.2 * usual : null;
  }

  function bestIndex(series, lowest) {
    let at = 0;
    series.y.forEach((value, i) => {
      if (lowest ? value < series.y[at] : value > series.y[at]) at = i;
    });
    return at;
  }

  /** Radio buttons for one of several choices: {value: label}. */
  function radios(parent, name, choices, chosen, choose) {
    for (const [value, label] of Object.entries(choices)) {
      parent.append(el("label", {},
        el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }),
        el("span", {}, label)));
    }
  }

  /** Insert a figure into a section, sorted by rank. */
  function insertByRank(section, root, rank) {
    root.dataset.rank = rank;
    const next = [...section.children].find((other) => Number(other.dataset.rank) > rank);
    section.insertBefore(root, next || null);
  }

  const SUMMARY_ROWS = [
    ["party", (s) => s.party],
    ["status", (s) => (s.status === "running" ? "running (or killed)" : s.status)],
    ["rounds", (s) => s.rounds],
    ["training time", (s) => s.seconds == null ? null : seconds(s.seconds) + (s.virtual_time ? " (virtual time)" : "")],
    ["estimated time left", (s) => s.remaining_s == null ? null : seconds(s.remaining_s)],
    ["estimated bytes left", (s) => s.remaining_bytes == null ? null : bytes(s.remaining_bytes)],
    ["time per round", (s) => s.round_s == null ? null : seconds(s.round_s)],
    ["time per round, recently", (s) => s.recent_round_s == null ? null : seconds(s.recent_round_s)],
    ["waiting for messages", (s) => s.waiting_share == null ? null : share(s.waiting_share)],
    ["waiting for messages, recently", (s) => s.recent_waiting_share == null ? null : share(s.recent_waiting_share)],
    ["link busy sending, recently", (s) => s.sending_share == null ? null : share(s.sending_share)],
    ["link busy receiving, recently", (s) => s.receiving_share == null ? null : share(s.receiving_share)],
    ["time spent evaluating", (s) => s.evaluating_s == null ? null : seconds(s.evaluating_s)],
    ["best held-out metric", (s) => s.best == null ? null
      : `${s.metric} ${number(s.best)} at round ${number(s.best_round)}, ${seconds(s.best_seconds)}`],
    ["last held-out metric", (s) => s.final == null ? null : `${s.metric} ${number(s.final)}`],
    ["test metric", (s) => s.test == null ? null
      : `${s.metric} ${number(s.test)} with the weights of round ${number(s.test_round)}`],
    ["sent in training", (s) => s.bytes_sent == null ? null : bytes(s.bytes_sent)],
    ["received in training", (s) => s.bytes_received == null ? null : bytes(s.bytes_received)],
    ["evaluation traffic", (s) => s.evaluation_bytes == null ? null : bytes(s.evaluation_bytes)],
    ["local steps", (s) => s.local_steps == null ? null : number(s.local_steps)],
    ["local steps per round, recently", (s) => s.recent_local_steps == null ? null : oneDecimal(s.recent_local_steps)],
    ["bubbles", (s) => s.bubbles == null ? null : number(s.bubbles)],
    ["bubbles per round, recently", (s) => s.recent_bubbles == null ? null : oneDecimal(s.recent_bubbles)],
    ["attempts", (s) => number(s.attempts)],
  ];

  /** The figures of some runs. Each function fills a section; `redraw` updates all of them. */
  function view(runs) {
    const hidden = new Set();
    const draws = [];
    let axis = "round";

    function add(draw) {
      draw();
      draws.push(draw);
    }
    const redraw = () => draws.forEach((draw) => draw());
    const visible = (series) => series.filter((one) => one.x.length && !hidden.has(one.run));
    const axisOptions = (name) => ({
      x: AXES[name].x, formatX: AXES[name].format, whole: AXES[name].whole, hidden: new Set(hidden),
    });

    /** The legend, with a checkbox per run, and the choice of x axis. */
    function controls(legend, xAxis) {
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
      radios(xAxis, "x-axis", Object.fromEntries(Object.entries(AXES).map(([k, v]) => [k, v.name])), axis,
        (chosen) => { axis = chosen; redraw(); });
    }

    /** A figure with one series per run: `pick` returns a run's points, `describe` its caption.
        It appears once a run has a point. With `clip`, rare high values are cut off. */
    function lineFigure(grid, spec, pick, { describe, rank = 0, fixedAxis = null, clip = false }) {
      let chart = null;
      let limit = null;
      const range = (_, low, high) => {
        const [from, to] = uPlot.rangeNum(low, limit ?? high, 0.1, true);
        return [from, limit ?? to];
      };
      add(() => {
        const xAxis = fixedAxis || axis;
        const series = runs.map((run, i) => {
          const points = pick(run) || {};
          const [x, y] = ascending(points[xAxis] || [], points.y || []);
          return { name: run.label, run: i, x, y };
        }).filter((one) => one.x.length);
        if (!chart && !series.length) return;
        if (!chart) {
          chart = Charts.lineChart({ ...spec, range });
          insertByRank(grid, chart.root, rank);
        }
        const parts = visible(series).map((one) => `${one.name}: ${describe(one, AXES[xAxis].at)}`);
        limit = clip ? yLimit(visible(series)) : null;
        if (limit !== null) parts.push("the highest points are off the chart");
        chart.set({ ...axisOptions(xAxis), series, caption: joinParts(parts) });
      });
    }

    function learning(section) {
      const grid = section.querySelector(".grid");
      const empty = el("p", { class: "faint" },
        "No loss or evaluation yet. Only the guest records loss and metrics.");
      section.append(empty);
      const known = new Set();
      add(() => {
        for (const [name, { summary }] of runs.flatMap((run) => Object.keys(run.held_out).map((n) => [n, run]))) {
          if (known.has(name)) continue;
          known.add(name);
          const lowest = summary.lower_is_better.includes(name);
          const title = summary.titles[name] || name;
          lineFigure(grid, { title: `Held-out ${title}`, y: title }, (run) => run.held_out[name], {
            clip: lowest, rank: lowest ? 1 : 0, // the metric first, then the losses
            describe: (series, where) => {
              const at = bestIndex(series, lowest);
              return `best ${number(series.y[at])} at ${where(series.x[at])}, last ${number(last(series.y))}`;
            },
          });
        }
      });
      lineFigure(grid, { title: "Training loss", y: "loss" }, (run) => run.loss, {
        clip: true, rank: 2, describe: (series) => `from ${number(series.y[0])} to ${number(last(series.y))}`,
      });
      const scheduled = (run) => (run.lr.y.some((value) => value !== run.lr.y[0]) ? run.lr : null);
      lineFigure(grid, { title: "Learning rate", y: "rate" }, scheduled, {
        rank: 3, describe: (series) => `from ${number(series.y[0])} to ${number(last(series.y))}`,
      });
      add(() => { empty.hidden = grid.children.length > 0; });
    }

    function similarity(grid) {
      let chart = null;
      add(() => {
        const series = runs.map((run, i) => {
          const { quantiles } = run.similarity;
          if (!quantiles.length) return null;
          const [x, , p10, p25, median, p75, max] = ascending(run.similarity[axis], ...quantiles);
          return {
            name: run.label, run: i, x, y: median,
            bands: [
              { low: p25, high: p75, alpha: 0.28, lowName: "25%", highName: "75%" },
              { low: p10, high: max, alpha: 0.1, lowName: "10%", highName: "maximum" },
            ],
          };
        }).filter((one) => one !== null);
        if (!chart && !series.length) return;
        if (!chart) {
          chart = Charts.lineChart({
            title: "Cosine similarity of cached batches: median, quartiles, 10% to maximum", y: "median",
          });
          insertByRank(grid, chart.root, 0);
        }
        const parts = visible(series).map((one) => `${one.name}: median from ${number(one.y[0])} ` +
          `to ${number(last(one.y))}, last 10% quantile ${number(last(one.bands[1].low))}`);
        chart.set({ ...axisOptions(axis), series, caption: joinParts(parts) });
      });
    }

    function cache(section) {
      const grid = section.querySelector(".grid");
      similarity(grid);
      lineFigure(grid, { title: "Age of the batches used by local steps, in rounds", y: "rounds" },
        (run) => run.staleness,
        { rank: 1, describe: (series) => `${number(Number(mean(series.y).toFixed(2)))} rounds on average` });
      add(() => { section.hidden = !grid.children.length; });
    }

    function throughput(section) {
      const grid = section.querySelector(".grid");
      [["sent", "Sent"], ["received", "Received"]].forEach(([direction, title], rank) => {
        lineFigure(grid, { title: `${title} in training, Mbps`, y: "Mbps" }, (run) => run[direction], {
          rank, fixedAxis: "seconds",
          describe: (series) => `${number(Number(mean(series.y).toPrecision(3)))} Mbps on average`,
        });
      });
      add(() => { section.hidden = !grid.children.length; });
    }

    /** A timeline of a few rounds: `windows()` returns [{run, first, last, seconds, spans}]. */
    function time(section, windows) {
      const chart = Gantt.gantt("What each party and its link did");
      section.append(chart.root);
      add(() => {
        const shown = windows().filter((window) => !hidden.has(window.run));
        const to = Math.max(1e-6, ...shown.map((window) => window.seconds));
        const groups = shown.map((window) => ({
          name: `${runs[window.run].label}, rounds ${window.first} to ${window.last}`,
          run: window.run, spans: window.spans,
        }));
        const parts = shown.map((window) => {
          const waitedS = window.spans.filter(([kind]) => kind === "wait")
            .reduce((sum, [, from, until]) => sum + until - from, 0);
          const count = window.last - window.first + 1;
          return `${runs[window.run].label}: ${seconds(window.seconds / count)} per round, ` +
            `${share(waitedS / window.seconds)} of it waiting for messages`;
        });
        chart.set({ groups, from: 0, to, caption: joinParts(parts) });
      });
    }

    /** Each run's summary, without the rows that are named. */
    function summary(holder, without = []) {
      const shown = SUMMARY_ROWS.filter(([name]) => !without.includes(name));
      add(() => {
        const rows = shown.map(([name, value]) => [name, ...runs.map((run) => value(run.summary))])
          .filter((row) => row.slice(1).some((value) => value != null));
        replaceContent(holder, table(["", ...runs.map((run) => run.label)], rows, { full: true }));
      });
    }

    /** The warnings and hints of each run, with advice. */
    function warnings(holder) {
      add(() => {
        const found = runs.flatMap((run) => run.warnings.map((warning) => [run.label, ...warning]));
        replaceContent(holder, found.length
          ? el("ul", { class: "warnings" }, ...found.map(([label, topic, message, advice, level]) =>
            el("li", { class: level },
              el("p", {}, el("strong", {}, `${label}, ${topic}: `), message),
              advice && el("p", { class: "faint" }, advice))))
          : el("p", { class: "good" }, "No warnings."));
      });
    }

    function eventLog(holder) {
      add(() => {
        const rows = runs.flatMap((run) =>
          run.event_log.map(([t, title, detail]) => [run.label, seconds(t), title, detail]));
        replaceContent(holder, rows.length
          ? table(["run", "after", "event", "details"], rows)
          : el("p", { class: "faint" }, "No outages, restarts or warnings."));
      });
    }

    /** The audits of the runs that have one; without any, the section is hidden. */
    function audit(section, holder) {
      add(() => {
        const audited = runs.filter((run, i) => run.audit && !hidden.has(i));
        section.hidden = !audited.length;
        const note = (text) => el("p", { class: "faint" }, text);
        replaceContent(holder, el("div", {}, ...audited.flatMap(({ label, audit: { tables, notes } }) => [
          ...tables.flatMap((one) => [
            table(one.headings, one.rows, { caption: `${label}. ${one.title}`, full: true }),
            ...one.notes.map(note),
          ]),
          ...notes.map((text) => note(`${label}: ${text}`)),
        ])));
      });
    }

    return { hidden, add, redraw, controls, learning, cache, throughput, time, summary, warnings, audit, eventLog };
  }

  return { view, radios };
})();
