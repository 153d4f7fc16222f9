// Is it learning, and if not, why?

import { get, post, put } from "./api.js";
import { chart, clearCharts } from "./charts.js";
import { clock, duration, linked, make, number, section, table, visible } from "./dom.js";

// As `MixtureConfig` has it.
const RATIO_ERROR = 1e-6;

const PHASES = ["idle_seconds", "rollout_seconds", "merge_seconds", "update_seconds", "sync_seconds", "other_seconds"];

const PHASE_MEANINGS = {
  boot: "workers load the model",
  idle: "no episode is open: the run waits for clients",
  overlap: "a step is trained while episodes are open",
  paused: "the run is paused",
  rollout: "episodes are open",
  sync: "weights are published and loaded",
  train: "a step is trained",
};

/** The charts, by title: metrics, unit. Those of single tags are added to the first. */
const CHARTS = [
  ["Reward", ["reward_mean"], ""],
  ["Tasks with equal rewards", ["tasks_equal", "tasks"], "tasks"],
  ["Loss", ["loss"], ""],
  ["Entropy", ["entropy", "sampled_entropy"], "nats"],
  ["KL to the reference model", ["kl"], "nats"],
  ["Trainer against engine", ["logprob_gap_mean", "logprob_gap"], "nats"],
  ["Staleness", ["staleness_mean", "staleness_max"], "steps"],
  ["Length of an answer", ["tokens_per_call"], "tokens"],
  ["Sampled tokens per second", ["tokens_per_second"], "tokens/s"],
];

const CORRELATIONS = ["reward_success_correlation", "reward_length_correlation"];

export async function overviewView(place, app) {
  const [action, news, progress, rest, shares, measured, failed, spent, working] = Array.from({ length: 9 }, () => make("div"));
  const curves = make("section", { class: "charts", "aria-label": "Curves" });
  place.append(action, news, progress, rest, shares, curves, measured, failed, spent, working);
  let drawn = "";
  let wanted = "";
  const update = async () => {
    const { overview } = app;
    const { findings: found, last_step: lastStep, batch: filling, mixture, step: trained, state } = overview.status;
    // What did not change keeps its focus and its scroll position.
    renew(action, [state, overview.status.paused], () => controls(app));
    renew(news, [found, lastStep, state], () => findings(overview));
    renew(progress, [filling, mixture, trained, overview.seconds_per_step, Math.floor(overview.status.uptime_seconds / 60)], () => batch(overview));
    renew(rest, overview.status.spending, () => left(overview));
    renew(spent, overview.status.spending, () => costs(overview));
    const mixed = overview.config?.mixture;
    const ratios = mixed && ratiosOf(mixed, trained + 1);
    renew(shares, [mixed, ratios, overview.scope, state === "OFFLINE"], () => mixtureForm(app, ratios));
    const { evaluations: evaluated, counters, quarantined } = overview.status;
    renew(measured, evaluated, () => evaluations(overview));
    renew(failed, [Object.entries(counters).filter(([name]) => name.startsWith("aborted_")), quarantined], () => failures(overview));
    renew(working, overview.clients, () => clients(overview));
    const last = overview.status.last_step;
    const key = `${overview.status.run_id} ${last?.step} ${overview.status.step}`;
    if (key === drawn) return;
    wanted = key;
    const data = await get("/v1/steps", { points: 300 });
    if (key !== wanted) return;
    drawn = key;
    const tags = data.names.filter((name) => name.startsWith("reward_mean/"));
    const onStep = (step) => app.go(`step/${step}`);
    const components = data.names.filter((name) => name.startsWith("component_mean/"));
    const cards = CHARTS.map(([title, names, unit], i) => chart(title, data, i === 0 ? [...names, ...tags] : names, { unit, onStep }));
    // Shares such as the success would be flat lines beside counts.
    const isShare = (name) => data.curves[name].mean.every((value) => Math.abs(value ?? 0) <= 1);
    const ofRewards = [
      chart("Components of the reward", data, components.filter(isShare), { onStep }),
      chart("Components of the reward beyond 1", data, components.filter((name) => !isShare(name)), { onStep }),
      chart("Correlation of the reward with success and length", data, CORRELATIONS, { onStep }),
    ];
    cards.splice(1, 0, ...ofRewards);
    cards.push(chart("Time by phase", data, PHASES, { stacked: true, unit: "s", onStep }));
    curves.replaceChildren(...cards.filter((card) => card.dataset.metrics));
    if (data.total === 0) curves.replaceChildren(make("p", { class: "dim" }, "No step has ended yet, so there are no curves."));
    clearCharts();
  };
  await update();
  return update;
}

/** Draws a part anew if what it shows has changed. */
function renew(place, shown, draw) {
  const key = JSON.stringify(shown);
  if (place.dataset.shown === key) return;
  place.dataset.shown = key;
  place.replaceChildren(draw());
}

function controls(app) {
  const { status, scope } = app.overview;
  if (scope !== "control") return make("div");
  const said = make("span", { role: "status", class: "bad" });
  const action = (title, question, path, body) =>
    make(
      "button",
      {
        onclick: async () => {
          if (!confirm(question)) return;
          try {
            await post(path, body);
            said.textContent = "";
            app.refresh();
          } catch (error) {
            said.textContent = visible(error.message);
          }
        },
      },
      title,
    );
  const running = status.state !== "OFFLINE";
  return make(
    "div",
    { class: "controls" },
    running && status.paused === null && action("Pause", "Pause the run? Open episodes can end; no new ones begin.", "/v1/run/pause", { reason: "paused on the page" }),
    running && status.paused !== null && action("Resume", "Resume the run?", "/v1/run/resume", {}),
    running && action("Stop", "Stop the run? Its engine and trainer end. It can be started again from its last checkpoint.", "/v1/run/stop", undefined),
    said,
  );
}

/** The ratios of the batch of a step. */
function ratiosOf(mixture, step) {
  return mixture.schedule.findLast((stage) => stage.from_step <= step)?.ratios ?? mixture.ratios;
}

/** Changes the ratios of the tags, for tokens of the scope control; `now` has the present ones. */
function mixtureForm(app, now) {
  const { config, scope, status } = app.overview;
  const mixture = config?.mixture;
  if (!mixture || scope !== "control" || status.state === "OFFLINE") return make("div");
  const said = make("span", { role: "status", class: "bad" });
  const total = make("output", { class: "dim" });
  const fields = Object.entries(now).map(([tag, ratio], i) => [
    tag,
    make("input", { id: `ratio-${i}`, type: "number", min: 0, max: 1, step: "any", value: ratio, required: true, oninput: () => sum() }),
  ]);
  const all = () => fields.reduce((sum, [, field]) => sum + Number(field.value), 0);
  const sum = () => (total.textContent = `sum ${number(all())}`);
  sum();
  const change = async (event) => {
    event.preventDefault();
    const ratios = Object.fromEntries(fields.map(([tag, field]) => [tag, Number(field.value)]));
    if (Math.abs(all() - 1) > RATIO_ERROR) {
      said.textContent = `The ratios must sum to 1; they sum to ${number(all())}.`;
      return;
    }
    const text = Object.entries(ratios).map(([tag, ratio]) => `${tag} ${ratio}`).join(", ");
    const later = mixture.schedule.length ? ` The schedule with ${mixture.schedule.length} stages is removed.` : "";
    if (!confirm(visible(`Change the mixture from the next batch on? ${text}.${later}`))) return;
    try {
      await put("/v1/mixture", { ratios, grace_seconds: mixture.grace_seconds });
      said.textContent = "";
      app.refresh();
    } catch (error) {
      said.textContent = visible(error.message);
    }
  };
  return section(
    "Mixture",
    make(
      "form",
      { class: "filters", onsubmit: change },
      fields.map(([tag, field]) => make("label", { for: field.id }, `${tag} `, field)),
      total,
      make("button", {}, "Change the mixture"),
      said,
    ),
  );
}

function findings({ status }) {
  const sentences = new Set(status.findings.map((finding) => finding.message));
  const others = (status.last_step?.findings ?? []).filter((text) => !sentences.has(text));
  // The sentence above has why the run is paused.
  const present = status.findings.filter((finding) => finding.code !== "paused");
  const judged = present.some((finding) => finding.since_step !== null);
  if (present.length === 0 && others.length === 0) {
    if (status.state === "OFFLINE" || status.paused) return make("div");
    return make("p", { class: "good" }, "No findings: nothing that is watched looks wrong.");
  }
  return section(
    "Findings",
    make(
      "ul",
      { class: "findings" },
      present.map((finding) => make("li", { class: finding.stuck ? "stuck" : "" }, make("strong", {}, finding.code.replaceAll("_", " ")), " ", linked(finding.message), since(finding), example(finding, status))),
      judged ? [] : others.map((text) => make("li", {}, make("strong", {}, make("a", { href: `#/step/${status.last_step.step}` }, `step ${status.last_step.step}`)), " ", linked(text))),
      (status.last_step?.forks ?? []).map((text) => make("li", { class: "dim" }, linked(text))),
    ),
    // Mostly the same in other words, about that step alone.
    judged && others.length > 0 && make("details", {}, make("summary", {}, `Also reported for step ${status.last_step.step}`), make("ul", {}, others.map((text) => make("li", {}, linked(text))))),
  );
}

// Whatever a finding is about, this order has an episode that shows it first.
const EXAMPLES = { reward_drop: "lowest", malformed: "lowest", tools_alike: "lowest", cut_off: "lowest" };

/** A link to an episode of the last step, for findings about its answers and rewards. */
function example(finding, { last_step: last }) {
  if (finding.since_step === null || !last) return null;
  const order = EXAMPLES[finding.code] ?? "highest";
  return make("span", {}, " ", make("a", { href: `#/example/${last.step}?order=${order}` }, `the episode of step ${last.step} with the ${order} reward`));
}

function since(finding) {
  const parts = [];
  if (finding.since_step !== null) {
    parts.push(" ", make("a", { href: `#/step/${finding.since_step}` }, `since step ${finding.since_step}`));
    parts.push(finding.good_step ? `; the last good checkpoint is that of step ${finding.good_step}` : "");
  } else if (finding.seconds >= 1) {
    parts.push(` (for ${duration(finding.seconds)})`);
  }
  return make("span", { class: "dim" }, ...parts);
}

function batch({ status, seconds_per_step: pace }) {
  const parts = [];
  if (status.batch) {
    const { ready, needed, full_by: by, open_episodes: open, quarantined } = status.batch;
    parts.push(
      make("progress", { max: needed, value: ready, "aria-label": "The batch that is being filled" }),
      ` ${ready} of ${needed} ${by === "episodes" ? "episodes" : "tasks"} of the next batch, `,
      make("a", { href: "#/episodes?state=open" }, `${open} episodes open`),
      quarantined ? `, ${quarantined} tasks quarantined` : "",
    );
  }
  for (const [tag, progress] of Object.entries(status.mixture ?? {})) {
    parts.push(make("div", {}, `${tag}: ${progress.ready} of ${progress.slots} slots, ${progress.under_way} started${progress.blocked ? ", no client works on it" : ""}`));
  }
  const facts = [
    `model ${status.model ?? "none"}`,
    `step ${number(status.step)}`,
    pace === null ? null : `${duration(pace)} per step`,
    `up ${duration(status.uptime_seconds)}`,
  ];
  return make("div", { class: "batch" }, make("div", {}, ...parts), make("p", { class: "dim" }, facts.filter(Boolean).join(" · ")));
}

function left({ status }) {
  const { spending } = status;
  if (!spending || Object.keys(spending.seconds).length === 0) return make("div");
  const { time_left: time, budget } = spending;
  const between = time && time.low !== null ? ` (90 %: ${duration(time.low)} to ${duration(time.high)})` : "";
  const facts = [
    time?.steps ? `${duration(time.seconds)} left for ${number(time.steps)} steps${between}` : null,
    spending.device_usd === null && spending.paid.length === 0 ? null : `cost ${usd(spending.usd)}`,
    budget.usd === null ? null : `budget ${usd(budget.usd)}`,
    budget.hours === null ? null : `${number(spending.active_hours)} of ${number(budget.hours)} hours`,
  ];
  return make("p", { class: "dim left" }, facts.filter(Boolean).join(" · "));
}

function costs({ status }) {
  const { spending } = status;
  if (!spending || Object.keys(spending.seconds).length === 0) return make("div");
  const held = Object.entries(spending.devices).map(([kind, count]) => `${count} ${kind}`);
  const price = spending.device_usd === null ? "which have no price" : usd(spending.device_usd);
  const phases = Object.entries(spending.seconds);
  const total = phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  const hours = Object.values(spending.device_hours).reduce((sum, value) => sum + value, 0);
  return section(
    "Time and money",
    table(
      `Time by phase, with ${held.join(", ")}: ${price}`,
      [
        ["phase", ([phase]) => phase],
        ["meaning", ([phase]) => PHASE_MEANINGS[phase] ?? ""],
        ["time", ([, seconds]) => duration(seconds), true],
        ["share", ([, seconds]) => (total > 0 ? `${number((100 * seconds) / total)} %` : "-"), true],
        ["device-hours", ([phase]) => number(phase === "total" ? hours : spending.device_hours[phase]), true],
      ],
      [...phases, ["total", total]],
    ),
    spending.paid.length > 0 &&
      table(
        "Paid to other services",
        [
          ["for", (row) => row.source],
          ["model", (row) => row.model || "-"],
          ["tokens", (row) => (row.model ? number(row.input_tokens + row.output_tokens) : "-"), true],
          ["cost", (row) => usd(row.usd), true],
        ],
        spending.paid,
      ),
  );
}

function usd(value) {
  return value === null ? "no price" : `${value.toFixed(2)} USD`;
}

function evaluations({ status }) {
  if (status.evaluations.length === 0) return make("div");
  return section(
    "Evaluations",
    table(
      "The latest of each task set",
      [
        ["task set", (row) => row.tag],
        ["step", (row) => number(row.step), true],
        ["tasks", (row) => number(row.tasks), true],
        ["episodes", (row) => `${number(row.episodes)}${row.open ? ` (${row.open} open)` : ""}`, true],
        ["mean reward", (row) => number(row.reward_mean), true],
        ["pass@k", (row) => Object.entries(row.pass_at).map(([k, value]) => `${k}: ${number(value)}`).join(", ") || "-"],
        ["aborted", (row) => number(row.aborted), true],
      ],
      status.evaluations,
    ),
  );
}

function failures({ status }) {
  const causes = Object.entries(status.counters).filter(([name, count]) => name.startsWith("aborted_") && count);
  if (causes.length === 0 && status.quarantined.length === 0) return make("div");
  return section(
    "Failures",
    table(
      "Aborted episodes by cause",
      [
        ["cause", ([name]) => make("a", { href: `#/episodes?state=aborted&cause=${name.slice(8)}` }, name.slice(8).replaceAll("_", " "))],
        ["episodes", ([, count]) => number(count), true],
      ],
      causes.sort(([, a], [, b]) => b - a),
    ),
    status.quarantined.length > 0 &&
      table(
        "Tasks that are not tried again",
        [
          ["task", (row) => row.task_id || "all tasks of the client"],
          ["client", (row) => row.client_id],
          ["failures", (row) => number(row.aborts), true],
          ["last reason", (row) => row.reason],
        ],
        status.quarantined,
      ),
  );
}

function clients({ clients: rows, time }) {
  return section(
    "Clients",
    rows.length === 0
      ? make("p", { class: "dim" }, "No client has an open episode.")
      : table(
          "Clients with open episodes",
          [
            ["client", (row) => row.name || row.client],
            ["open episodes", (row) => number(row.open_episodes), true],
            ["oldest claimed", (row) => `${clock(time - row.oldest_seconds)} (${duration(row.oldest_seconds)} ago)`],
          ],
          rows,
        ),
  );
}
