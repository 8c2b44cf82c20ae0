/* The report: lays out the data of `content.py` as charts and tables. */
"use strict";
(() => {
  const { el, number, table, data } = Page;
  const { runs } = data;
  const byId = (id) => document.getElementById(id);
  const view = Runs.view(runs);
  let position = "middle";

  /** Each run's settings: those that differ first and highlighted, all of them on demand. */
  function compare(id, rows, what) {
    const head = [what, ...runs.map((run) => run.label)];
    const cells = (row) => [row.name, ...row.values];
    const different = rows.filter((row) => row.differs);
    if (runs.length > 1) {
      byId(id).append(different.length
        ? table(head, different.map(cells), { highlight: () => true, full: true, caption: "Differences between the runs" })
        : el("p", { class: "faint" }, "The same in all runs."));
    }
    byId(id).append(el("details", { open: false }, el("summary", {}, `Show all ${rows.length}`),
      table(head, rows.map(cells), { highlight: (_, i) => runs.length > 1 && rows[i].differs, full: true })));
  }

  const byRole = (values) => Object.entries(values || {}).map(([role, value]) => `${role} ${value}`).join(", ");
  function choices() {
    const tuned = runs.filter((run) => run.choices.length);
    if (!tuned.length) return byId("choices").remove();
    for (const run of tuned) {
      const rows = run.choices.map((c) =>
        [c.round, c.reason, byRole(c.W), byRole(c.R), c.depth, [...new Set(Object.values(c.codec))].join(", ")]);
      byId("choices").append(table(["from round", "reason", "W", "R", "depth", "codec"], rows,
        { caption: run.label, full: true }));
    }
  }

  /** A guest's run compared with its baseline, where it has one. */
  function federation() {
    const compared = runs.filter((run) => run.federation);
    if (!compared.length) return byId("federation").remove();
    const interval = (bounds) => (bounds ? `${number(bounds[0])} to ${number(bounds[1])}` : "–");
    for (const { label, federation: { metrics, caption, notes } } of compared) {
      if (metrics.length) {
        const colours = { better: "good", worse: "bad" };
        const rows = metrics.map(([title, together, alone, lift, bounds, verdict]) =>
          [title, together, alone, lift, interval(bounds), el("span", { class: colours[verdict] ?? null }, verdict)]);
        byId("federation").append(table(["metric", "together", "alone", "added", "95 % interval", "verdict"], rows,
          { caption: `${label}. ${caption}`, full: true }));
      }
      for (const note of notes) byId("federation").append(el("p", { class: "faint" }, `${label}: ${note}`));
    }
  }

  const done = runs.filter((run) => run.summary.status === "done").length;
  byId("subtitle").textContent = `${runs.length} run${runs.length > 1 ? "s" : ""}, ${done} done`;
  view.controls(byId("legend"), byId("x-axis"));
  view.summary(byId("numbers"));
  federation();
  view.audit(byId("audit"), byId("audit-tables"));
  view.warnings(byId("warning-list"));
  view.learning(byId("learning"));
  Runs.radios(byId("positions"), "position", Object.fromEntries(Object.keys(data.windows).map((n) => [n, n])), position,
    (chosen) => { position = chosen; view.redraw(); });
  view.time(byId("time"), () => data.windows[position]);
  view.throughput(byId("link"));
  view.cache(byId("cache"));
  choices();
  view.eventLog(byId("log-entries"));
  compare("settings", data.settings, "setting");
  compare("versions", data.versions, "package");
})();
