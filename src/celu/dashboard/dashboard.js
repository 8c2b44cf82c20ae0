/* The dashboard: follows the stream of what happens, and redraws what it changes.

   The server tells of each run at first all its lines and its state, then the points that were added
   and the state as it is. */
"use strict";
(() => {
  const { el, number, bytes, seconds, table, put } = Page;
  const by = (id) => document.getElementById(id);
  const runs = [];
  let view = null; // once all runs are known
  let following = true;
  let drawing = false;

  /** Add the points of one line to another; nested ones too. */
  function extend(line, more) {
    for (const [name, values] of Object.entries(more)) {
      if (!Array.isArray(values)) {
        line[name] ||= {};
        extend(line[name], values);
      } else if (Array.isArray(values[0])) { // a column for each quantile
        if (!line[name]?.length) line[name] = values.map(() => []);
        values.forEach((column, i) => line[name][i].push(...column));
      } else {
        line[name] ||= [];
        line[name].push(...values);
      }
    }
  }

  function take(news) {
    for (const [i, told] of Object.entries(news)) {
      runs[i] ||= {};
      if (told.lines) Object.assign(runs[i], { label: told.label }, told.lines);
      else if (told.added) extend(runs[i], told.added);
      Object.assign(runs[i], told.state);
    }
    if (!view) begin();
    else if (following) redraw();
  }

  /** At most once a frame, and not while nobody looks. */
  function redraw() {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      view.redraw();
    });
  }

  /** How far each run is, in a line. */
  function standing() {
    const lines = runs.map(({ label, figures }) => {
      const parts = [figures.rounds == null ? "no round yet" : `round ${figures.rounds}`];
      if (figures.final != null) parts.push(`${figures.metric} ${number(figures.final)}`);
      if (figures.status !== "running") parts.push(figures.status);
      if (figures.left_s != null) {
        parts.push(`about ${seconds(figures.left_s)} and ${bytes(figures.left_bytes)} left`);
      }
      return [label, parts.join(", ")];
    });
    by("standing").replaceChildren(...lines.map(([label, words]) =>
      el("li", {}, el("strong", {}, `${label}: `), words)));
    document.title = `${lines[0][1]} · ${runs.map((run) => run.label).join(", ")} · celu`;
  }

  /** The list shows what is amiss as it is now; a screen reader is told what is new, and no more. */
  let known = new Set();
  function announce() {
    const now = new Map(runs.flatMap((run) =>
      run.warnings.map(([what, words]) => [`${run.label}, ${what}`, words])));
    const fresh = [...now].filter(([key]) => !known.has(key)).map(([key, words]) => `${key}: ${words}`);
    const over = [...known].filter((key) => !now.has(key)).map((key) => `${key}: no longer`);
    if (fresh.length || over.length) by("announced").textContent = [...fresh, ...over].join(". ");
    known = new Set(now.keys());
  }

  function similarity(value) {
    if (value == null) return "not used yet";
    return el("span", {},
      el("meter", { min: 0, max: 1, value: Math.max(0, value), "aria-hidden": "true" }), number(value));
  }

  function batches() {
    const having = runs.filter((run, i) => run.table?.length && !view.hidden.has(i));
    by("table").hidden = !having.length;
    having.forEach((run, i) => {
      if (!by("batches").children[i]) by("batches").append(el("div"));
      const newest = Math.max(...run.table.map(([round]) => round));
      const rows = run.table.map(([round, uses, similar]) =>
        [number(round), newest - round, uses, similarity(similar)]);
      put(by("batches").children[i], table(["batch of round", "rounds ago", "uses", "similarity (median)"], rows,
        { caption: run.label, whole: true }));
    });
    while (by("batches").children.length > having.length) by("batches").lastChild.remove();
  }

  function begin() {
    view = Runs.view(runs);
    view.add(standing);
    view.add(announce);
    view.warnings(by("amiss"));
    view.bar(by("legend"), by("over"));
    // Those of the whole run, where there are some of late.
    view.summary(by("figures"), ["a round, on average", "waiting for messages", "evaluating", "for evaluation"]);
    view.learning(by("learning"));
    view.time(by("time"), () => runs.flatMap((run, i) => (run.window ? [{ run: i, ...run.window }] : [])));
    view.link(by("link"));
    view.add(batches);
    view.cache(by("cache"));
    view.happened(by("list"));
  }

  by("follow").addEventListener("change", () => {
    following = by("follow").checked;
    if (following && view) redraw();
  });

  const say = (words) => { by("connection").textContent = words; };
  const source = new EventSource("/events");
  source.addEventListener("open", () => say("live"));
  source.addEventListener("news", (event) => take(JSON.parse(event.data)));
  source.addEventListener("error", () => say("the dashboard does not answer; trying again"));
  source.addEventListener("end", () => {
    source.close();
    say("the dashboard has ended: this is the last it told");
  });
})();
