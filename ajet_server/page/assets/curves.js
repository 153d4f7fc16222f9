// Every metric as a curve.

import { get } from "./api.js";
import { chart, clearCharts } from "./charts.js";
import { make } from "./dom.js";

const MOST = 60;

// What shows first whether a run learns; metrics of no group come last, by name.
const GROUPS = [
  /^reward_mean/, /^reward_/, /^component_mean\//, /^(pass|success)/, /^loss/, /^kl/, /^(update|clip|ratio)/, /entropy/, /^grad/, /^learning_rate/,
  /^advantage|^no_signal/, /^logprob|^importance/, /^tasks/, /^episodes/, /^calls/, /^tool_/, /^staleness/, /^tokens_per/, /^tokens/, /_seconds$/,
];

/** Metrics in the order of their groups. */
function ordered(names) {
  const groupOf = (name) => {
    const group = GROUPS.findIndex((each) => each.test(name));
    return group < 0 ? GROUPS.length : group;
  };
  return [...names].sort((a, b) => groupOf(a) - groupOf(b) || (a < b ? -1 : 1));
}

export async function curvesView(place, app, { query }) {
  const filter = make("input", { type: "search", id: "filter", value: query.get("find") ?? "", autocomplete: "off" });
  const range = make(
    "select",
    { id: "range" },
    [0, 10_000, 1000, 100].map((count) => make("option", { value: count }, count ? `the last ${count} steps` : "all steps")),
  );
  const charts = make("section", { class: "charts", "aria-label": "Curves" });
  place.append(
    make("div", { class: "filters" }, make("label", { for: "filter" }, "Metrics with "), filter, make("label", { for: "range" }, " over "), range),
    charts,
  );
  let all = false;
  let drawn = "";
  let wanted = "";
  const update = async () => {
    const { step } = app.overview.status;
    const span = Number(range.value);
    const key = [app.overview.status.run_id, step, span, all, filter.value].join(" ");
    if (key === drawn) return;
    wanted = key;
    const after = span ? Math.max(0, step - span) : 0;
    const { names } = await get("/v1/steps", { metrics: "-", points: 1 });
    const chosen = ordered(names.filter((name) => name.includes(filter.value.trim())));
    if (key !== wanted) return;
    if (chosen.length === 0) return charts.replaceChildren(make("p", { class: "dim" }, "No metric has this in its name."));
    const shown = all ? chosen : chosen.slice(0, MOST);
    const data = await get("/v1/steps", { metrics: listed(shown), points: 300, after });
    if (key !== wanted) return;
    drawn = key;
    const onStep = (at) => app.go(`step/${at}`);
    const cards = (some) => some.map((name) => chart(name, data, [name], { onStep }));
    const zero = shown.filter((name) => isZero(data.curves[name]));
    const folded = make("div", { class: "charts" });
    const showZero = () => folded.childElementCount || folded.append(...cards(zero));
    const showAll = () => {
      all = true;
      app.refresh();
    };
    charts.replaceChildren(
      ...cards(shown.filter((name) => !zero.includes(name))),
      ...(shown.length < chosen.length ? [make("p", { class: "all" }, make("button", { type: "button", onclick: showAll }, `Show all ${chosen.length} metrics`))] : []),
      ...(zero.length ? [make("details", { class: "all", ontoggle: showZero }, make("summary", {}, `${zero.length} metrics that are 0 in each step`), folded)] : []),
    );
    clearCharts();
  };
  filter.addEventListener("change", app.refresh);
  range.addEventListener("change", app.refresh);
  await update();
  return update;
}

function isZero(curve) {
  return Boolean(curve) && [...curve.mean, ...curve.low, ...curve.high].every((value) => value === 0 || value === null);
}

/** The names for a query; "", which asks for all, if they do not fit into one. */
function listed(names) {
  const text = names.join(",");
  return text.length > 8000 || names.some((name) => name.includes(",")) ? "" : text;
}
