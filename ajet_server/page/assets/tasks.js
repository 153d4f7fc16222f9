// The index of tasks: which step taught what.

import { get } from "./api.js";
import { make, number, pages, partOf, skipped, table } from "./dom.js";

const PAGE = 200;
const MOST_SKIPPED = 20_000;

const ORDERS = [
  ["newest", "newest first"],
  ["improved", "most improved first"],
  ["worsened", "most worsened first"],
  ["lowest", "lowest reward first"],
];

export async function tasksView(place, app, { query }) {
  const find = make("input", { id: "find", name: "find", type: "search", value: query.get("find") ?? "", autocomplete: "off" });
  const order = make("select", { id: "order", name: "order" }, ORDERS.map(([value, title]) => make("option", { value, selected: query.get("order") === value }, title)));
  const form = make(
    "form",
    {
      class: "filters",
      onchange: () => form.requestSubmit(),
      onsubmit: (event) => {
        event.preventDefault();
        app.go(`tasks?${new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""))}`);
      },
    },
    make("label", {}, "tasks with ", find),
    make("label", {}, " ", order),
  );
  const skip = skipped(query, MOST_SKIPPED);
  const { tasks, more, total } = await get("/v1/tasks", { find: query.get("find"), order: query.get("order"), limit: PAGE, skip });
  const list = tasks.length ? taskTable(partOf("tasks", skip, tasks, more, number(total)), tasks) : make("p", { class: "dim" }, "No trained task matches.");
  place.append(form, list, pages("tasks", query, skip, PAGE, more));
  return null;
}

function taskTable(caption, tasks) {
  const step = (row, at) => make("a", { href: `#/step/${at}?${new URLSearchParams({ task: row.task_id })}` }, String(at));
  return table(
    caption,
    [
      ["task", (row) => make("a", { href: `#/episodes?${new URLSearchParams({ task: row.task_id, outputs: 1 })}` }, row.task_id)],
      ["episodes", (row) => number(row.episodes), true],
      ["steps", (row) => number(row.steps), true],
      ["first step", (row) => step(row, row.first_step), true],
      ["reward then", (row) => number(row.first_reward), true],
      ["last step", (row) => step(row, row.last_step), true],
      ["reward now", (row) => number(row.last_reward), true],
      ["", (row) => row.steps > 1 && make("a", { href: `#/step/${row.last_step}?${new URLSearchParams({ with: row.first_step, task: row.task_id })}` }, "compare then and now")],
    ],
    tasks,
  );
}
