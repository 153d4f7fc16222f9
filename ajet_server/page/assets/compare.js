// This run and runs of report files side by side. The files stay in this browser.

import { get } from "./api.js";
import { chart, clearCharts } from "./charts.js";
import { make, number, section, table } from "./dom.js";

const LETTERS = "ABCDEF";
const LAST = 20;
const LEAST_LAST = 5;
const Z = 1.959963984540054;
// To these lengths, reports cut settings, and they have at most so many.
const NAME_CHARS = 120;
const TEXT_CHARS = 300;
const MOST_SETTINGS = 300;
const MOST_BYTES = 64 * 2 ** 20;
const METRICS = [
  "reward_mean",
  "loss",
  "entropy",
  "kl",
  "logprob_gap_mean",
  "staleness_mean",
  "tokens_per_call",
  "grad_norm",
  "tokens_per_second",
  "rollout_seconds",
  "idle_seconds",
  "update_seconds",
  "sync_seconds",
];

// Kept until the tab is closed.
let others = [];

export async function compareView(place, app) {
  const said = make("p", { role: "alert", class: "bad" });
  const drawn = make("div");
  const field = make("input", {
    id: "reports",
    type: "file",
    accept: ".html",
    multiple: true,
    onchange: async () => {
      said.textContent = "";
      try {
        const read = (await Promise.all([...field.files].map(runsOf))).flat();
        const room = LETTERS.length - 1 - others.length;
        if (read.length > room) said.textContent = `At most ${LETTERS.length} runs can be compared: some are left out.`;
        others = [...others, ...read.slice(0, room)];
      } catch (error) {
        said.textContent = error.message;
      }
      field.value = "";
      await show();
    },
  });
  const show = async () => {
    const mine = await thisRun(app);
    const runs = [mine, ...others].map((run, i) => ({ ...run, label: `${LETTERS[i]} ${run.name}` }));
    drawn.replaceChildren(...(others.length ? comparison(runs) : []));
    clearCharts();
  };
  place.append(
    make(
      "section",
      {},
      make("h2", {}, "Compare this run"),
      make("p", {}, "Choose reports of other runs, which this command writes. They are read in this browser and sent nowhere."),
      make("pre", {}, "ajet report RUN"),
      make("p", { class: "filters" }, make("label", { for: "reports" }, "Reports "), field, make("button", { type: "button", onclick: () => { others = []; show(); } }, "Remove all")),
      said,
    ),
    drawn,
  );
  await show();
  return null;
}

/** Reads the runs of a report file; everything in them is untrusted. */
async function runsOf(file) {
  const wrong = new Error(`${file.name} is not a report of ajet report.`);
  if (file.size > MOST_BYTES) throw wrong;
  const found = (await file.text()).match(/<script type="application\/json" id="ajet-report">([^<]*)<\/script>/);
  if (!found) throw wrong;
  try {
    return JSON.parse(found[1]).map((run) => {
      const { steps, curves } = run.curves;
      const kept = Object.entries(curves).filter(([, curve]) => curve.mean.length === steps.length);
      return {
        name: String(run.name),
        steps: steps.map(Number),
        curves: new Map(kept.map(([name, curve]) => [name, curve.mean.map((value) => (typeof value === "number" ? value : null))])),
        config: new Map(Object.entries(run.config).map(([name, value]) => [name, normal(String(value))])),
        final: new Map(Object.entries(run.final).map(([name, [mean, ends]]) => [name, withEnds(mean, ends)])),
        evaluations: run.evaluations.map((one) => ({ tag: String(one.tag), step: Number(one.step), text: `step ${number(Number(one.step))}: ${Object.entries(one.pass_at).map(([k, [value, ends]]) => `pass@${k} ${withEnds(value, ends)}`).join(", ")}` })),
      };
    });
  } catch {
    throw wrong;
  }
}

async function thisRun(app) {
  const { status, config } = app.overview;
  const all = await get("/v1/steps", { points: 200 });
  const count = Math.min(LAST, Math.max(LEAST_LAST, Math.floor(all.total / 5)));
  const last = await get("/v1/steps", { points: count, after: Math.max(0, status.step - count) });
  return {
    name: `this run (${status.run_id ?? "none"})`,
    steps: all.steps,
    curves: new Map(Object.entries(all.curves).map(([name, curve]) => [name, curve.mean])),
    config: new Map(flat("", config ?? {}).map(([name, value]) => [cut(name, NAME_CHARS), cut(normal(value), TEXT_CHARS)])),
    final: new Map(Object.entries(last.curves).map(([name, curve]) => [name, meanOf(curve.mean.filter((value) => value !== null))])),
    evaluations: status.evaluations.map((one) => ({
      tag: one.tag,
      step: one.step,
      text: `step ${number(one.step)}: ${Object.entries(one.pass_at).map(([k, value]) => `pass@${k} ${withEnds(value, k === "1" && one.tasks ? wilson(value, one.tasks) : null)}`).join(", ")}`,
    })),
  };
}

function flat(name, value) {
  if (value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length) {
    return Object.entries(value).flatMap(([key, inner]) => flat(name ? `${name}.${key}` : key, inner));
  }
  return [[name, typeof value === "string" ? value : JSON.stringify(value)]];
}

/** As reports cut texts: whole characters are counted, not UTF-16 units. */
function cut(text, most) {
  const chars = text.length > most ? Array.from(text) : [];
  return chars.length > most ? `${chars.slice(0, most).join("")} [${chars.length - most} more characters]` : text;
}

/** The text of a setting in one spelling: `1.0` and `1` are equal. */
function normal(text) {
  try {
    return JSON.stringify(JSON.parse(text));
  } catch {
    return text;
  }
}

function withEnds(value, ends) {
  return Array.isArray(ends) && ends[0] !== ends[1] ? `${number(value)} (${number(ends[0])} to ${number(ends[1])})` : number(value);
}

function meanOf(values) {
  if (!values.length) return "-";
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  if (values.length === 1) return number(mean);
  const half = Z * Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - 1) / values.length);
  return withEnds(mean, [mean - half, mean + half]);
}

/** Wilson's score interval (1927), as trackers get it. */
function wilson(share, trials) {
  const scale = 1 + Z ** 2 / trials;
  const centre = (share + Z ** 2 / (2 * trials)) / scale;
  const half = (Z / scale) * Math.sqrt((share * (1 - share)) / trials + Z ** 2 / (4 * trials ** 2));
  return [Math.max(0, centre - half), Math.min(1, centre + half)];
}

function comparison(runs) {
  const columns = (cell) => runs.map((run, i) => [run.label, (row) => cell(run, row, i)]);
  const tags = [...new Set(runs.flatMap((run) => run.evaluations.map((one) => one.tag)))].sort();
  const names = [...new Set(runs.flatMap((run) => [...run.config.keys()]))].sort();
  const known = (name) => runs.filter((run) => run.config.has(name) || run.config.size < MOST_SETTINGS);
  const differing = names.filter((name) => new Set(known(name).map((run) => run.config.get(name))).size > 1);
  return [
    section(
      "Final numbers",
      table(
        `Means of the last fifth of the steps, ${LEAST_LAST} to ${LAST}, with normal intervals of 95 % between steps`,
        [["metric", (name) => name], ...columns((run, name) => run.final.get(name) ?? "-")],
        METRICS.filter((name) => runs.some((run) => run.final.has(name))),
      ),
    ),
    tags.length ? section("Evaluations", table("The last of each task set, with intervals of 95 %", [["task set", (tag) => tag || "(no tag)"], ...columns((run, tag) => lastOf(run, tag)?.text ?? "-")], tags)) : make("div"),
    section("Curves", make("div", { class: "charts" }, METRICS.map((name) => overlaid(name, runs)).filter((card) => card.dataset.metrics))),
    section(
      "Settings that differ",
      differing.length ? table("Settings", [["setting", (name) => name], ...columns((run, name) => run.config.get(name) ?? "(not set)")], differing) : make("p", {}, "All settings are the same."),
    ),
  ];
}

/** The evaluation of a tag at the greatest step: several clients may have evaluated it. */
function lastOf(run, tag) {
  return run.evaluations.filter((one) => one.tag === tag).reduce((last, one) => (last && last.step > one.step ? last : one), null);
}

/** One metric over the steps of all runs; a run has the same colour and dashes in each chart. */
function overlaid(name, runs) {
  const steps = [...new Set(runs.flatMap((run) => run.steps))].sort((a, b) => a - b);
  const curves = {};
  for (const run of runs.some((one) => one.curves.has(name)) ? runs : []) {
    const values = new Map(run.steps.map((step, i) => [step, run.curves.get(name)?.[i]]));
    curves[run.label] = { mean: steps.map((step) => values.get(step) ?? null), low: [], high: [] };
  }
  return chart(name, { steps, times: [], curves }, Object.keys(curves));
}
