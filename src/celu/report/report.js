/* The report: puts what `content.py` gathered into figures and tables. */
"use strict";
(() => {
  const { el, swatch, number, bytes, seconds, share, table, data } = Page;
  const { runs } = data;
  const AXES = {
    round: { name: "rounds", x: "round", format: number, at: (n) => `round ${number(n)}`, whole: true },
    bytes: { name: "bytes", x: "bytes", format: bytes, at: bytes },
    seconds: { name: "time", x: "time", format: seconds, at: seconds },
  };
  const by = (id) => document.getElementById(id);
  const hidden = new Set();
  let axis = "round";
  let place = "middle";
  const redraws = []; // of all figures

  /** Those points whose x ascends: where a run went back, what came later holds. */
  function ascending(x, ...columns) {
    const kept = [];
    x.forEach((value, i) => {
      while (kept.length && x[kept[kept.length - 1]] >= value) kept.pop();
      kept.push(i);
    });
    return [x, ...columns].map((column) => kept.map((i) => column[i]));
  }

  function lineOf(run, i, points, over) {
    const [x, y] = ascending(points[over] || [], points.y || []);
    return { name: run.label, run: i, x, y };
  }

  const onAxis = (over) => ({
    x: AXES[over].x, formatX: AXES[over].format, whole: AXES[over].whole, hidden: new Set(hidden),
  });

  function visible(lines) {
    return lines.filter((line) => line.x.length && !hidden.has(line.run));
  }

  /** Where to end a y axis whose few highest points would flatten all others; null: nowhere. */
  function ceiling(lines) {
    const sorted = lines.flatMap((line) => line.y).sort((a, b) => a - b);
    const usual = sorted[Math.floor(0.98 * (sorted.length - 1))];
    return usual > 0 && last(sorted) > 5 * usual ? 1.2 * usual : null;
  }

  /** A figure of one line a run: `pick` finds its points. With `clips`, rare heights are cut off. */
  function lineFigure(section, spec, pick, { words, fixed = null, clips = false }) {
    const having = runs.filter((run) => (pick(run)?.y || []).length);
    if (!having.length) return;
    let top = null;
    const range = (_, low, high) => {
      const [from, to] = uPlot.rangeNum(low, top ?? high, 0.1, true);
      return [from, top ?? to];
    };
    const chart = Charts.lines({ ...spec, range });
    section.append(chart.root);
    const draw = () => {
      const over = fixed || axis;
      const lines = runs.map((run, i) => lineOf(run, i, pick(run) || {}, over));
      const said = visible(lines).map((line) => `${line.name}: ${words(line, AXES[over].at)}`);
      top = clips ? ceiling(visible(lines)) : null;
      if (top !== null) said.push("the highest points are beyond the figure");
      chart.set({
        ...onAxis(over), lines: lines.filter((line) => line.x.length),
        words: said.join("; ") + (said.length ? "." : ""),
      });
    };
    draw();
    redraws.push(draw);
  }

  const last = (list) => list[list.length - 1];
  const mean = (list) => list.reduce((a, b) => a + b, 0) / list.length;

  function best(line, lowest) {
    let at = 0;
    line.y.forEach((value, i) => {
      if (lowest ? value < line.y[at] : value > line.y[at]) at = i;
    });
    return at;
  }

  const LOWER = new Set(["loss", "rmse"]);
  function learning() {
    const section = by("learning").querySelector(".grid");
    const names = [...new Set(runs.flatMap((run) => Object.keys(run.held_out)))];
    names.sort((a, b) => LOWER.has(a) - LOWER.has(b)); // the metric first, then the losses
    for (const name of names) {
      const shown = name === "auc" ? "AUC" : name;
      lineFigure(section, { title: `Held-out ${shown}`, y: shown }, (run) => run.held_out[name], {
        clips: LOWER.has(name),
        words: (line, where) => {
          const at = best(line, LOWER.has(name));
          return `best ${number(line.y[at])} at ${where(line.x[at])}, last ${number(last(line.y))}`;
        },
      });
    }
    lineFigure(section, { title: "Training loss", y: "loss" }, (run) => run.loss, {
      clips: true, words: (line) => `from ${number(line.y[0])} to ${number(last(line.y))}`,
    });
    if (!section.children.length) {
      by("learning").append(el("p", { class: "faint" },
        "No evaluation in these runs: only the guest's folder has loss and metrics."));
    }
  }

  function similarity(section) {
    if (!runs.some((run) => run.similarity.quantiles.length)) return;
    const chart = Charts.lines({
      title: "Cosine similarity of cached batches: median, quartiles, tenth to highest", y: "median",
    });
    section.append(chart.root);
    const draw = () => {
      const lines = runs.map((run, i) => {
        const [x, , low, q25, median, q75, high] = ascending(run.similarity[axis], ...run.similarity.quantiles);
        return {
          name: run.label, run: i, x, y: median || [],
          bands: [
            { low: q25, high: q75, alpha: 0.28, lowName: "quarter", highName: "three quarters" },
            { low, high, alpha: 0.1, lowName: "tenth", highName: "highest" },
          ],
        };
      }).filter((line) => line.x.length);
      const said = visible(lines).map((line) => `${line.name}: median ${number(line.y[0])} at first, ` +
        `${number(last(line.y))} at last, a tenth below ${number(last(line.bands[1].low))}`);
      chart.set({ ...onAxis(axis), lines, words: `${said.join("; ")}.` });
    };
    draw();
    redraws.push(draw);
  }

  function cache() {
    const section = by("cache").querySelector(".grid");
    similarity(section);
    lineFigure(section, { title: "Age of the batches that local steps used, in rounds", y: "rounds" },
      (run) => run.staleness, { words: (line) => `${number(Number(mean(line.y).toFixed(2)))} on average` });
    if (!section.children.length) by("cache").remove();
  }

  function link() {
    const section = by("link").querySelector(".grid");
    for (const [way, title] of [["sent", "Sent"], ["received", "Received"]]) {
      lineFigure(section, { title: `${title} in training, Mbps`, y: "Mbps" }, (run) => run[way], {
        fixed: "seconds", words: (line) => `${number(Number(mean(line.y).toPrecision(3)))} Mbps on average`,
      });
    }
    if (!section.children.length) by("link").remove();
  }

  function time() {
    const chart = Gantt.gantt("What each party did, and what its link carried");
    by("time").append(chart.root);
    const draw = () => {
      const shown = data.windows[place].filter((window) => !hidden.has(window.run));
      const to = Math.max(1e-6, ...shown.map((window) => window.seconds));
      const groups = shown.map((window) => ({
        name: `${runs[window.run].label}, rounds ${window.first} to ${window.last}`,
        run: window.run, spans: window.spans,
      }));
      const words = shown.map((window) => {
        const waited = window.spans.filter(([what]) => what === "wait")
          .reduce((sum, [, from, to]) => sum + to - from, 0);
        const count = window.last - window.first + 1;
        return `${runs[window.run].label}: ${seconds(window.seconds / count)} a round, ` +
          `${share(waited / window.seconds)} of it waiting`;
      });
      chart.set({ groups, from: 0, to, words: words.length ? `${words.join("; ")}.` : "" });
    };
    radios(by("places"), "place", Object.fromEntries(Object.keys(data.windows).map((n) => [n, n])), place,
      (chosen) => { place = chosen; draw(); });
    draw();
    redraws.push(draw);
  }

  function radios(parent, name, choices, chosen, choose) {
    for (const [value, words] of Object.entries(choices)) {
      parent.append(el("label", {},
        el("input", { type: "radio", name, value, checked: value === chosen, onchange: () => choose(value) }),
        el("span", {}, words)));
    }
  }

  function bar() {
    runs.forEach((run, i) => {
      const box = el("input", {
        type: "checkbox", checked: true, value: i,
        onchange: () => {
          if (box.checked) hidden.delete(i);
          else hidden.add(i);
          redraws.forEach((draw) => draw());
        },
      });
      by("legend").append(el("label", {}, box, swatch(i), el("span", {}, run.label)));
    });
    radios(by("over"), "over", Object.fromEntries(Object.entries(AXES).map(([k, v]) => [k, v.name])), axis,
      (chosen) => { axis = chosen; redraws.forEach((draw) => draw()); });
  }

  function summary() {
    const ways = [
      ["party", (f) => f.party],
      ["ended", (f) => (f.status === "running" ? "not yet, or without a word" : f.status)],
      ["rounds", (f) => f.rounds],
      ["time", (f) => f.seconds == null ? null : seconds(f.seconds) + (f.virtual ? " (virtual)" : "")],
      ["a round, on average", (f) => f.round_s == null ? null : seconds(f.round_s)],
      ["waiting for messages", (f) => f.waited == null ? null : share(f.waited)],
      ["evaluating", (f) => f.evaluating_s == null ? null : seconds(f.evaluating_s)],
      ["best held-out metric", (f) => f.best == null ? null
        : `${f.metric} ${number(f.best)} at round ${number(f.best_round)}, ${seconds(f.best_seconds)}`],
      ["last", (f) => f.final == null ? null : `${f.metric} ${number(f.final)}`],
      ["sent in training", (f) => f.bytes_sent == null ? null : bytes(f.bytes_sent)],
      ["received in training", (f) => f.bytes_received == null ? null : bytes(f.bytes_received)],
      ["for evaluation", (f) => f.evaluation_bytes == null ? null : bytes(f.evaluation_bytes)],
      ["local steps", (f) => f.local_steps == null ? null : number(f.local_steps)],
      ["bubbles", (f) => f.bubbles == null ? null : number(f.bubbles)],
      ["times started", (f) => number(f.attempts)],
    ];
    const rows = ways.map(([name, of]) => [name, ...runs.map((run) => of(run.figures))])
      .filter((row) => row.slice(1).some((value) => value != null));
    by("summary").append(table(["", ...runs.map((run) => run.label)], rows, { whole: true }));
  }

  /** What each run has of a setting: those that differ first and marked, the rest on demand. */
  function sideBySide(id, rows, what) {
    const head = [what, ...runs.map((run) => run.label)];
    const cells = (row) => [row.name, ...row.values];
    const differ = rows.filter((row) => row.differs);
    if (runs.length > 1) {
      by(id).append(differ.length
        ? table(head, differ.map(cells), { marked: () => true, whole: true, caption: "Where the runs differ" })
        : el("p", { class: "faint" }, "The same in all runs."));
    }
    by(id).append(el("details", { open: false }, el("summary", {}, `All ${rows.length}`),
      table(head, rows.map(cells), { marked: (_, i) => runs.length > 1 && rows[i].differs, whole: true })));
  }

  const roles = (pair) => Object.entries(pair || {}).map(([name, value]) => `${name} ${value}`).join(", ");
  function choices() {
    const having = runs.filter((run) => run.choices.length);
    if (!having.length) return by("choices").remove();
    for (const run of having) {
      const rows = run.choices.map((c) =>
        [c.round, c.reason, roles(c.W), roles(c.R), c.depth, [...new Set(Object.values(c.codec))].join(", ")]);
      by("choices").append(table(["from round", "because", "W", "R", "in flight", "codec"], rows,
        { caption: run.label, whole: true }));
    }
  }

  function happened() {
    const rows = runs.flatMap((run) => run.happened.map(([t, what, words]) => [run.label, seconds(t), what, words]));
    by("happened").append(rows.length
      ? table(["run", "after", "what", ""], rows)
      : el("p", { class: "faint" }, "No outage, no restart, no warning."));
  }

  const done = runs.filter((run) => run.figures.status === "done").length;
  by("subtitle").textContent = `${runs.length} run${runs.length > 1 ? "s" : ""}, ${done} done`;
  bar();
  summary();
  learning();
  time();
  link();
  cache();
  choices();
  happened();
  sideBySide("settings", data.settings, "setting");
  sideBySide("versions", data.versions, "package");
})();
