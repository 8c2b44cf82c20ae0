/* The dashboard: follows the server's stream of updates and redraws the page.

   For each run, the server first sends a snapshot (all series and the state), then only the new
   points of the series and the current state. */
"use strict";
(() => {
  const { el, number, bytes, seconds, table, replaceContent } = Page;
  const byId = (id) => document.getElementById(id);
  const runs = [];
  let view = null; // created with the first update, when all runs are known
  let isLive = true;
  let isRedrawScheduled = false;

  /** Append new points to series, which may be nested by name. */
  function appendPoints(series, points) {
    for (const [name, values] of Object.entries(points)) {
      if (!Array.isArray(values)) {
        series[name] ||= {};
        appendPoints(series[name], values);
      } else if (Array.isArray(values[0])) { // a column for each quantile
        if (!series[name]?.length) series[name] = values.map(() => []);
        values.forEach((column, i) => series[name][i].push(...column));
      } else {
        series[name] ||= [];
        series[name].push(...values);
      }
    }
  }

  function applyUpdates(updates) {
    for (const [i, update] of Object.entries(updates)) {
      runs[i] ||= {};
      if (update.series) Object.assign(runs[i], { label: update.label }, update.series);
      else if (update.new_points) appendPoints(runs[i], update.new_points);
      Object.assign(runs[i], update.state);
    }
    if (!view) buildPage();
    else if (isLive) redraw();
  }

  /** Redraw at most once per frame, and not in a background tab. */
  function redraw() {
    if (isRedrawScheduled) return;
    isRedrawScheduled = true;
    requestAnimationFrame(() => {
      isRedrawScheduled = false;
      view.redraw();
    });
  }

  /** One line of text per run, and the page's title. */
  function showProgress() {
    const progress = runs.map(({ label, summary }) => {
      const parts = [summary.rounds == null ? "no rounds yet" : `round ${summary.rounds}`];
      if (summary.final != null) parts.push(`${summary.metric} ${number(summary.final)}`);
      if (summary.status !== "running") parts.push(summary.status);
      if (summary.remaining_s != null) {
        parts.push(`about ${seconds(summary.remaining_s)} and ${bytes(summary.remaining_bytes)} left`);
      }
      return [label, parts.join(", ")];
    });
    byId("progress").replaceChildren(...progress.map(([label, text]) =>
      el("li", {}, el("strong", {}, `${label}: `), text)));
    document.title = `${progress[0][1]} · ${runs.map((run) => run.label).join(", ")} · celu`;
  }

  /** Announce new and resolved warnings to screen readers; repeating all of them would be noise. */
  let announced = new Set();
  function announceWarnings() {
    const current = new Map(runs.flatMap((run) =>
      run.warnings.map(([topic, message]) => [`${run.label}, ${topic}`, message])));
    const added = [...current].filter(([key]) => !announced.has(key)).map(([key, message]) => `${key}: ${message}`);
    const resolved = [...announced].filter((key) => !current.has(key)).map((key) => `${key}: resolved`);
    if (added.length || resolved.length) byId("announcements").textContent = [...added, ...resolved].join(". ");
    announced = new Set(current.keys());
  }

  function similarityMeter(value) {
    if (value == null) return "not used yet";
    return el("span", {},
      el("meter", { min: 0, max: 1, value: Math.max(0, value), "aria-hidden": "true" }), number(value));
  }

  function showBatches() {
    const shown = runs.filter((run, i) => run.table?.length && !view.hidden.has(i));
    byId("table").hidden = !shown.length;
    shown.forEach((run, i) => {
      if (!byId("batches").children[i]) byId("batches").append(el("div"));
      const newest = Math.max(...run.table.map(([round]) => round));
      const rows = run.table.map(([round, uses, median]) =>
        [number(round), newest - round, uses, similarityMeter(median)]);
      replaceContent(byId("batches").children[i],
        table(["batch of round", "age in rounds", "uses", "median similarity"], rows,
          { caption: run.label, full: true }));
    });
    while (byId("batches").children.length > shown.length) byId("batches").lastChild.remove();
  }

  function buildPage() {
    view = Runs.view(runs);
    view.add(showProgress);
    view.add(announceWarnings);
    view.warnings(byId("warning-list"));
    view.controls(byId("legend"), byId("x-axis"));
    // Averages of the whole run are left out where the recent ones are shown.
    view.summary(byId("numbers"),
      ["time per round", "waiting for messages", "time spent evaluating", "evaluation traffic"]);
    view.learning(byId("learning"));
    view.time(byId("time"), () => runs.flatMap((run, i) => (run.window ? [{ run: i, ...run.window }] : [])));
    view.throughput(byId("link"));
    view.add(showBatches);
    view.cache(byId("cache"));
    view.audit(byId("audit"), byId("audit-tables"));
    view.eventLog(byId("log-entries"));
  }

  byId("live").addEventListener("change", () => {
    isLive = byId("live").checked;
    if (isLive && view) redraw();
  });

  const setConnection = (text) => { byId("connection").textContent = text; };
  const source = new EventSource("/events");
  source.addEventListener("open", () => setConnection("connected"));
  source.addEventListener("update", (event) => applyUpdates(JSON.parse(event.data)));
  source.addEventListener("error", () => setConnection("no connection to the dashboard; reconnecting"));
  source.addEventListener("end", () => {
    source.close();
    setConnection("the dashboard has stopped; this page shows its last update");
  });
})();
