// The index of tasks: which step taught what.

import { get } from "./api.js";
import { make, number, table } from "./dom.js";

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
  const { tasks, more } = await get("/v1/tasks", { find: query.get("find"), order: query.get("order") });
  place.append(form, tasks.length ? taskTable(tasks, more) : make("p", { class: "dim" }, "No trained task matches."));
  return null;
}

function taskTable(tasks, more) {
  const step = (row, at) => make("a", { href: `#/step/${at}?${new URLSearchParams({ task: row.task_id })}` }, String(at));
  return table(
    more ? `The first ${tasks.length} tasks` : tasks.length === 1 ? "1 task" : `${tasks.length} tasks`,
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
