/* The page of an evaluation: lays out `ScoreEvaluation.to_json` as charts and tables. */
"use strict";
(() => {
  const { el, number, swatch, table, data } = Page;
  const byId = (id) => document.getElementById(id);
  const count = (value) => value.toLocaleString("en");
  const hasOther = data.against_model != null;
  // Two files of one model, such as two versions, need names that differ.
  const other = data.against_model === data.model ? `${data.against_model} (other file)` : data.against_model;
  const names = Object.keys(data.titles);
  const [main] = names;
  const REFERENCE = 7; // the colour and dashes of a reference line
  const UNIT = (u, min, max) => [Math.min(0, min), Math.max(1, max)];
  const models = [[data.model, data.details], ...(hasOther ? [[other, data.against_details]] : [])];

  const interval = (one) => (one.low == null ? "–" : `${number(one.low)} to ${number(one.high)}`);
  function verdict(lift) {
    if (!lift.excludes_zero) return "unclear";
    return el("span", { class: lift.is_better ? "good" : "bad" }, lift.is_better ? "better" : "worse");
  }

  /** The cells of a metric: value and interval; with another model also its value, the lift, the verdict. */
  function cells(group, name) {
    const one = group.metrics[name];
    const found = [one.value, interval(one)];
    if (!hasOther) return found;
    const lift = group.lift[name];
    return [...found, group.against[name].value, lift.value, interval(lift), verdict(lift)];
  }
  const heads = ["value", "95 % interval", ...(hasOther ? [other, "lift", "95 % interval", "verdict"] : [])];

  function header() {
    byId("title").textContent = `Evaluation of ${data.model}`;
    const against = hasOther ? `, compared with ${other} on the same rows` : "";
    const weighted = data.weighted ? ", weighted" : "";
    byId("subtitle").textContent = `${data.output}, ${count(data.rows.evaluated)} rows${weighted}${against}`;
    const left = [["scored rows without a label", data.rows.without_label],
      ["labelled rows without a score", data.rows.without_score],
      ["labelled rows that only one file scores", data.rows.not_in_both]].filter(([, rows]) => rows > 0);
    byId("rows").textContent = left.length
      ? `Not evaluated: ${left.map(([what, rows]) => `${count(rows)} ${what}`).join(", ")}.`
      : "Every row has a score and a label.";
  }

  function metrics() {
    const rows = names.map((name) => [data.titles[name], ...cells(data.overall, name)]);
    if (data.details.calibration_error != null) {
      const filler = hasOther ? ["–", data.against_details.calibration_error, "–", "–", "–"] : ["–"];
      rows.push(["calibration error", data.details.calibration_error, ...filler]);
    }
    const how = data.resamples
      ? `Intervals from ${count(data.resamples)} resamples of the rows, seed ${data.seed}.`
      : "Without intervals.";
    byId("metrics").append(table(["metric", ...heads], rows, { caption: how, full: true }));
    if (data.overall.note) byId("metrics").append(el("p", { class: "faint" }, data.overall.note));
  }

  function legend() {
    const entries = [...models.map(([name]) => name), null].map((name, run) =>
      el("li", {}, swatch(name == null ? REFERENCE : run), name ?? "chance, or an ideal model"));
    byId("legend").append(...entries);
  }

  function chart(spec, shown) {
    const made = Charts.lineChart(spec);
    document.querySelector("#charts .grid").append(made.root);
    made.set(shown);
  }

  /** A curve of every model, with a reference line. */
  function curves(key, title, x, y, reference, caption) {
    if (!data.details[key]) return;
    const series = models.map(([name, details], run) => ({ name, run, ...details[key] }));
    if (reference) series.push({ name: "chance", run: REFERENCE, ...reference });
    chart({ title, y, range: UNIT }, { x, series, caption });
  }

  function calibration() {
    const isValue = data.output === "regression";
    const series = models.map(([name, { bins }], run) => ({
      name, run, x: bins.map((bin) => bin.mean_score), y: bins.map((bin) => bin.mean_label),
      bands: [{ low: bins.map((bin) => bin.low), high: bins.map((bin) => bin.high), alpha: 0.2 }],
    }));
    const all = series.flatMap((one) => one.x);
    const ends = [Math.min(...all), Math.max(...all)];
    series.push({ name: "ideal", run: REFERENCE, x: ends, y: ends });
    const title = { binary: "Calibration", multiclass: "Calibration of the top class", regression: "Deciles" }[data.output];
    const x = data.output === "multiclass" ? "mean highest probability" : "mean score";
    const y = { binary: "observed rate", multiclass: "share correct", regression: "mean label" }[data.output];
    chart({ title, y, ...(isValue ? {} : { range: UNIT }) }, {
      x, series,
      caption: `Mean label of rows with similar scores, with 95 % intervals. Bins hold about the same number of rows. `
        + `An ideal model is on the line from ${number(ends[0])} to ${number(ends[1])}.`,
    });
    for (const [name, { bins }] of models) {
      const rows = bins.map((bin, i) => [i + 1, bin.rows, bin.mean_score, bin.mean_label, interval(bin)]);
      byId("bins").append(table(["bin", "rows", x, y, "95 % interval"], rows, { caption: name, full: true }));
    }
  }

  function groups(id, list, rest) {
    if (!list.length && !rest.length) return byId(id).remove();
    const columns = [...new Set([...list.map((group) => group.column), ...rest.map((one) => one.column)])];
    for (const column of columns) {
      const own = list.filter((group) => group.column === column);
      const hasNotes = own.some((group) => group.note);
      const rows = own.map((group) => [group.value, group.rows,
        ...(group.metrics[main] ? cells(group, main) : heads.map(() => "–")), ...(hasNotes ? [group.note] : [])]);
      byId(id).append(table([column, "rows", ...heads, ...(hasNotes ? ["note"] : [])], rows,
        { caption: `${data.titles[main]} by ${column}`, full: true }));
      for (const one of rest.filter((each) => each.column === column)) {
        byId(id).append(el("p", { class: "faint" },
          `${count(one.slices)} smaller values of ${column} with ${count(one.rows)} rows are not shown.`));
      }
      const detailed = own.filter((group) => group.metrics[main]);
      if (!detailed.length) continue;
      byId(id).append(el("details", {}, el("summary", {}, `All metrics by ${column}`),
        ...names.slice(1).map((name) => table([column, "rows", ...heads],
          detailed.map((group) => [group.value, group.rows, ...cells(group, name)]),
          { caption: data.titles[name], full: true }))));
    }
  }

  header();
  metrics();
  legend();
  curves("roc", "ROC curve", "false positive rate", "true positive rate", { x: [0, 1], y: [0, 1] },
    `AUC ${models.map(([name], i) => `${name} ${number((i ? data.overall.against : data.overall.metrics).auc?.value)}`).join(", ")}; `
    + "a model without skill is on the diagonal.");
  curves("precision_recall", "Precision and recall", "recall", "precision", null,
    `PR-AUC ${models.map(([name], i) => `${name} ${number((i ? data.overall.against : data.overall.metrics).pr_auc?.value)}`).join(", ")}: `
    + "the mean precision over all recalls.");
  calibration();
  groups("slices", data.slices, data.rest);
  groups("fallback", data.fallback, []);
})();
