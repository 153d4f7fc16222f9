// Every metric as a curve.

import { get } from "./api.js";
import { chart, clearCharts } from "./charts.js";
import { make } from "./dom.js";

const MOST = 60;

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
  let drawn = "";
  let wanted = "";
  const update = async () => {
    const { step } = app.overview.status;
    const span = Number(range.value);
    const key = [app.overview.status.run_id, step, span, filter.value].join(" ");
    if (key === drawn) return;
    wanted = key;
    const after = span ? Math.max(0, step - span) : 0;
    const { names } = await get("/v1/steps", { metrics: "-", points: 1 });
    const chosen = names.filter((name) => name.includes(filter.value.trim()));
    if (key !== wanted) return;
    if (chosen.length === 0) return charts.replaceChildren(make("p", { class: "dim" }, "No metric has this in its name."));
    const data = await get("/v1/steps", { metrics: listed(chosen.slice(0, MOST)), points: 300, after });
    if (key !== wanted) return;
    drawn = key;
    const onStep = (at) => app.go(`step/${at}`);
    charts.replaceChildren(
      ...chosen.slice(0, MOST).map((name) => chart(name, data, [name], { onStep })),
      ...(chosen.length > MOST ? [make("p", { class: "dim" }, `${chosen.length - MOST} more: filter by a part of the name.`)] : []),
    );
    clearCharts();
  };
  filter.addEventListener("change", app.refresh);
  range.addEventListener("change", app.refresh);
  await update();
  return update;
}

/** The names for a query; "", which asks for all, if they do not fit into one. */
function listed(names) {
  const text = names.join(",");
  return text.length > 8000 || names.some((name) => name.includes(",")) ? "" : text;
}
