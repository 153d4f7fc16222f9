// One step: its metrics and episodes, or one task of two steps side by side.

import { get } from "./api.js";
import { make, number, section, table, visible } from "./dom.js";
import { conversation, endings, episodeTable } from "./episodes.js";

const MANY = 100;
const STEP = /^[1-9][0-9]{0,8}$/;

export async function stepView(place, app, { id, query }) {
  const step = Number(id);
  const other = query.get("with");
  const task = query.get("task");
  const trained = app.overview.status.step;
  const wrong = [id, other].filter((each) => each !== null).find((each) => !STEP.test(each));
  if (wrong !== undefined) {
    const why = Number(wrong) === 0 ? "Step 0 is the model before the training; it has no batch." : `${wrong || "Nothing"} is not a step.`;
    place.append(make("h2", {}, `Step ${id}`), make("p", {}, `${why} The first step is `, make("a", { href: "#/step/1" }, "step 1"), "."));
    return null;
  }
  const [batch, compared] = await Promise.all([
    get("/v1/episodes", { step, task, limit: MANY, order: "highest", outputs: true }),
    other ? get("/v1/episodes", { step: other, task, limit: MANY, order: "highest", outputs: true }) : null,
  ]);
  if (step > trained && batch.episodes.length === 0 && !task) {
    const last = trained > 0 ? ["The last one is ", make("a", { href: `#/step/${trained}` }, `step ${trained}`), "."] : [];
    place.append(make("h2", {}, `Step ${step}`), make("p", {}, `Step ${step} has not been trained yet. `, ...last));
    return null;
  }
  place.append(
    make("h2", {}, task ? `Step ${step}, task ${task}` : `Step ${step}`),
    make(
      "p",
      { class: "filters" },
      step > 1 && make("a", { href: `#/${address(step - 1, { task })}` }, `step ${step - 1}`),
      " ",
      step <= trained && make("a", { href: `#/${address(step + 1, { task })}` }, `step ${step + 1}`),
      " ",
      task && make("a", { href: `#/${address(step, { with: other })}` }, "all tasks"),
      " ",
      compare(app, step, other, task),
    ),
  );
  if (compared) {
    place.append(...side(step, batch.episodes, Number(other), compared.episodes));
    if (task) place.append(await spoken([Number(other), compared.episodes], [step, batch.episodes]));
  } else place.append(rewards(batch.episodes), endings(batch.endings), section("Episodes", episodeTable(batch.more ? `The ${MANY} with the highest reward first` : "Those with the highest reward first", batch.episodes), batch.more && rest(step, task, batch.total)));
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

/** A link to all episodes of a step. */
function rest(step, task, total) {
  const chosen = new URLSearchParams({ step, order: "highest", ...(task ? { task } : {}) });
  return make("p", {}, make("a", { href: `#/episodes?${chosen}` }, `all ${number(total)} episodes of step ${step}`));
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
  svg.setAttribute("viewBox", "0 0 420 190");
  svg.setAttribute("role", "img");
  const relation = correlation(tokens, values);
  const said = relation === null ? `no correlation, because ${high === low ? "all rewards" : "all lengths"} are equal` : `correlation ${number(relation)}`;
  svg.setAttribute("aria-label", `Reward against length of ${scored.length} episodes, ${said}`);
  const across = (value) => 50 + (360 * value) / most;
  const up = (value) => (high === low ? 80 : 150 - (140 * (value - low)) / (high - low));
  const draw = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
    if (text !== undefined) element.textContent = visible(text);
    svg.append(element);
  };
  draw("line", { x1: 50, y1: 155, x2: 410, y2: 155 });
  draw("line", { x1: 50, y1: 8, x2: 50, y2: 155 });
  for (const value of ticks(0, most)) {
    draw("line", { x1: across(value), y1: 155, x2: across(value), y2: 159 });
    draw("text", { x: across(value), y: 170, "text-anchor": "middle" }, number(value));
  }
  for (const value of ticks(low, high)) {
    draw("line", { x1: 46, y1: up(value), x2: 50, y2: up(value) });
    draw("text", { x: 43, y: up(value) + 3, "text-anchor": "end" }, number(value));
  }
  draw("text", { x: 230, y: 185, "text-anchor": "middle" }, "sampled tokens");
  for (const [i, row] of scored.entries()) {
    const dot = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    dot.setAttribute("cx", String(across(tokens[i])));
    dot.setAttribute("cy", String(up(values[i])));
    dot.setAttribute("r", "3.5");
    dot.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: visible(`${row.episode_id}: ${tokens[i]} tokens, reward ${values[i]}`) }));
    svg.append(dot);
  }
  return section(
    "Reward against length",
    make("figure", { class: "scatter" }, svg, make("figcaption", { class: "dim" }, `Across, sampled tokens; up, the reward. ${said[0].toUpperCase()}${said.slice(1)}.`)),
  );
}

/** Round values from `low` to `high`, at most six; one if both are the same. */
function ticks(low, high) {
  if (high === low) return [low];
  const rough = (high - low) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const each = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  const values = [];
  for (let i = Math.ceil(low / each); i * each <= high && values.length < 6; i++) values.push(Number((i * each).toPrecision(12)));
  return values;
}

/** Pearson's correlation; null if either side is the same everywhere. */
function correlation(xs, ys) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [mx, my] = [mean(xs), mean(ys)];
  let [xy, xx, yy] = [0, 0, 0];
  xs.forEach((x, i) => {
    xy += (x - mx) * (ys[i] - my);
    xx += (x - mx) ** 2;
    yy += (ys[i] - my) ** 2;
  });
  const differ = (values) => new Set(values).size > 1;
  return differ(xs) && differ(ys) && xx && yy ? xy / Math.sqrt(xx * yy) : null;
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
