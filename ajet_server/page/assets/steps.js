// One step: its metrics and episodes, or one task of two steps side by side.

import { get } from "./api.js";
import { make, number, section, table, visible } from "./dom.js";
import { conversation, endings, episodeTable } from "./episodes.js";

const MANY = 100;

export async function stepView(place, app, { id, query }) {
  const step = Number(id);
  const other = query.get("with");
  const task = query.get("task");
  const [batch, compared] = await Promise.all([
    get("/v1/episodes", { step, task, limit: MANY, order: "highest", outputs: true }),
    other ? get("/v1/episodes", { step: other, task, limit: MANY, order: "highest", outputs: true }) : null,
  ]);
  place.append(
    make("h2", {}, task ? `Step ${step}, task ${task}` : `Step ${step}`),
    make(
      "p",
      { class: "filters" },
      step > 1 && make("a", { href: `#/${address(step - 1, { task })}` }, `step ${step - 1}`),
      " ",
      make("a", { href: `#/${address(step + 1, { task })}` }, `step ${step + 1}`),
      " ",
      task && make("a", { href: `#/${address(step, { with: other })}` }, "all tasks"),
      " ",
      compare(app, step, other, task),
    ),
  );
  if (compared) {
    place.append(...side(step, batch.episodes, Number(other), compared.episodes));
    if (task) place.append(await spoken([Number(other), compared.episodes], [step, batch.episodes]));
  } else place.append(rewards(batch.episodes), endings(batch.endings), section("Episodes", episodeTable(batch.more ? `The ${MANY} with the highest reward first` : "Those with the highest reward first", batch.episodes)));
  const at = await metricsOf(step);
  if (!compared && at) {
    place.append(
      section(
        "Metrics",
        table(`Metrics of step ${step}`, [["metric", ([name]) => name], ["value", ([, value]) => number(value), true]], at),
      ),
    );
  }
  return null;
}

/** The address of a step's view, with what is chosen of the query. */
function address(step, query) {
  const chosen = Object.entries(query).filter(([, value]) => value);
  return `step/${step}${chosen.length ? `?${new URLSearchParams(chosen)}` : ""}`;
}

async function metricsOf(step) {
  const data = await get("/v1/steps", { after: step - 1, until: step, points: 1 });
  const values = Object.entries(data.curves).map(([name, curve]) => [name, curve.mean[0]]);
  return data.steps.length === 0 ? null : values.filter(([, value]) => value !== null);
}

/** The messages of the episode with the highest reward of each step, side by side. */
async function spoken(...steps) {
  const columns = await Promise.all(
    steps.map(async ([step, [best]]) => {
      if (!best) return make("div");
      const said = await get(`/v1/timelines/${encodeURIComponent(best.episode_id)}/messages`);
      return make("div", {}, make("h3", {}, `Step ${step}: reward ${number(best.reward)}`), make("ol", { class: "conversation" }, conversation(said)));
    }),
  );
  return section("What was said in the best episode of each step", make("div", { class: "side" }, columns));
}

function compare(app, step, other, task) {
  const field = make("input", { id: "with", size: 6, value: other ?? "", inputmode: "numeric" });
  return make(
    "form",
    {
      class: "inline",
      onsubmit: (event) => {
        event.preventDefault();
        app.go(address(step, { with: field.value, task }));
      },
    },
    make("label", { for: "with" }, "compare with step "),
    field,
    make("button", {}, "Compare"),
  );
}

function rewards(rows) {
  const scored = rows.filter((row) => row.reward !== null && row.output);
  if (scored.length < 2) return make("div");
  const tokens = scored.map((row) => row.output.tokens);
  const values = scored.map((row) => row.reward);
  const most = Math.max(...tokens, 1);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 420 160");
  svg.setAttribute("role", "img");
  const relation = correlation(tokens, values);
  svg.setAttribute("aria-label", `Reward against length of ${scored.length} episodes, correlation ${number(relation)}`);
  for (const [i, row] of scored.entries()) {
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    dot.setAttribute("cx", String(10 + (400 * tokens[i]) / most));
    dot.setAttribute("cy", String(high === low ? 80 : 150 - (140 * (values[i] - low)) / (high - low)));
    dot.setAttribute("r", "3.5");
    dot.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: visible(`${row.episode_id}: ${tokens[i]} tokens, reward ${values[i]}`) }));
    svg.append(dot);
  }
  return section(
    "Reward against length",
    make("figure", { class: "scatter" }, svg, make("figcaption", { class: "dim" }, `0 to ${number(most)} sampled tokens, reward ${number(low)} to ${number(high)}; correlation ${number(relation)}`)),
  );
}

function correlation(xs, ys) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [mx, my] = [mean(xs), mean(ys)];
  let [xy, xx, yy] = [0, 0, 0];
  xs.forEach((x, i) => {
    xy += (x - mx) * (ys[i] - my);
    xx += (x - mx) ** 2;
    yy += (ys[i] - my) ** 2;
  });
  return xx && yy ? xy / Math.sqrt(xx * yy) : 0;
}

function side(step, rows, other, others) {
  const tasks = [...new Set(rows.map((row) => row.task_id))].filter((task) => others.some((row) => row.task_id === task));
  if (tasks.length === 0) return [make("p", { class: "dim" }, `Steps ${step} and ${other} have no task in common.`)];
  return tasks.map((task) =>
    section(
      `Task ${task}`,
      make("div", { class: "side" }, [
        [other, others],
        [step, rows],
      ].map(([at, all]) => episodeTable(`Step ${at}`, all.filter((row) => row.task_id === task)))),
    ),
  );
}
