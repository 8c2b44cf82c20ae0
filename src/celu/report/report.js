/* The report: puts what `content.py` gathered into figures and tables. */
"use strict";
(() => {
  const { el, table, data } = Page;
  const { runs } = data;
  const by = (id) => document.getElementById(id);
  const view = Runs.view(runs);
  let place = "middle";

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

  const done = runs.filter((run) => run.figures.status === "done").length;
  by("subtitle").textContent = `${runs.length} run${runs.length > 1 ? "s" : ""}, ${done} done`;
  view.bar(by("legend"), by("over"));
  view.summary(by("figures"));
  view.warnings(by("amiss"));
  view.learning(by("learning"));
  Runs.radios(by("places"), "place", Object.fromEntries(Object.keys(data.windows).map((n) => [n, n])), place,
    (chosen) => { place = chosen; view.redraw(); });
  view.time(by("time"), () => data.windows[place]);
  view.link(by("link"));
  view.cache(by("cache"));
  choices();
  view.happened(by("list"));
  sideBySide("settings", data.settings, "setting");
  sideBySide("versions", data.versions, "package");
})();
