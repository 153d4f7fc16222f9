// Episodes: lists, and one of them with its messages and tokens, also while it is open.

import { get } from "./api.js";
import { clock, duration, make, number, section, table } from "./dom.js";
import { runningCalls } from "./running.js";

const STATES = ["", "open", "ended", "aborted", "prepared"];
const ORDERS = [
  ["newest", "newest first"],
  ["highest", "highest reward first"],
  ["lowest", "lowest reward first"],
];

/** The table of `/v1/episodes`, with what the model wrote if it was asked for. */
export function episodeTable(caption, rows) {
  const outputs = rows.some((row) => row.output);
  return table(
    caption,
    [
      ["episode", (row) => make("a", { href: `#/episode/${encodeURIComponent(row.episode_id)}` }, row.episode_id)],
      ["task", (row) => make("a", { href: `#/episodes?task=${encodeURIComponent(row.task_id)}&outputs=1` }, row.task_id)],
      ["kind", (row) => `${row.kind}${row.tag ? ` ${row.tag}` : ""}`],
      ["state", (row) => `${row.state}${row.cause ? `: ${row.cause.replaceAll("_", " ")}` : ""}`],
      ["reward", (row) => number(row.reward), true],
      ["version", (row) => number(row.version), true],
      ["claimed", (row) => clock(row.claimed_at)],
      ["took", (row) => (row.finished_at ? duration(row.finished_at - row.claimed_at) : "-"), true],
      ...(outputs
        ? [
            ["calls", (row) => number(row.output?.calls), true],
            ["tokens", (row) => number(row.output?.tokens), true],
            ["repeats", (row) => (row.output ? `${Math.round(row.output.repeats * 100)} %` : "-"), true],
            ["ending", (row) => make("span", { class: "ending" }, row.output?.ending ?? "")],
          ]
        : [["reason", (row) => make("span", { class: "ending" }, row.reason)]]),
    ],
    rows,
  );
}

/** What several episodes end with. */
export function endings(rows) {
  if (rows.length === 0) return make("div");
  return table(
    "Identical endings",
    [
      ["episodes", (row) => number(row.episodes), true],
      ["mean reward", (row) => number(row.reward), true],
      ["ending", (row) => make("span", { class: "ending" }, row.text)],
    ],
    rows,
  );
}

export async function episodesView(place, app, { query }) {
  const pick = (name, values) => {
    const options = values.map(([value, title]) => make("option", { value, selected: (query.get(name) ?? "") === value }, title));
    return make("select", { id: name, name }, options);
  };
  const field = (name, size) => make("input", { id: name, name, size, value: query.get(name) ?? "", autocomplete: "off" });
  const outputs = make("input", { type: "checkbox", id: "outputs", name: "outputs", value: 1, checked: query.get("outputs") === "1" });
  const form = make(
    "form",
    {
      class: "filters",
      onchange: () => form.requestSubmit(),
      onsubmit: (event) => {
        event.preventDefault();
        const chosen = [...new FormData(form)].filter(([, value]) => value !== "");
        app.go(`episodes?${new URLSearchParams(chosen)}`);
      },
    },
    make("label", {}, "state ", pick("state", STATES.map((state) => [state, state || "any"]))),
    make("label", {}, " kind ", pick("kind", [["", "any"], ["train", "train"], ["eval", "eval"]])),
    make("label", {}, " task ", field("task", 24)),
    make("label", {}, " step ", field("step", 6)),
    make("label", {}, " cause ", field("cause", 12)),
    make("label", {}, " ", pick("order", ORDERS)),
    make("label", {}, " ", outputs, " what the model wrote"),
  );
  const list = make("div");
  place.append(form, list);
  const update = async () => {
    const wanted = Object.fromEntries(["state", "kind", "task", "step", "cause", "order"].map((name) => [name, query.get(name)]));
    const { episodes, endings: shared, more } = await get("/v1/episodes", { ...wanted, limit: 200, outputs: query.get("outputs") === "1" });
    const rows = episodes;
    list.replaceChildren(
      endings(shared),
      rows.length ? episodeTable(more ? `The first ${rows.length} episodes` : `${rows.length} episodes`, rows) : make("p", { class: "dim" }, "No episode matches."),
    );
  };
  await update();
  // A list that someone reads must not move.
  return query.get("state") === "open" ? update : null;
}

export async function episodeView(place, app, { id }) {
  const facts = make("div");
  const spoken = make("ol", { class: "conversation" });
  const again = make("button", { type: "button", hidden: true, onclick: () => { again.hidden = true; frame.contentWindow.location.reload(); } }, "Show new calls");
  const frame = make("iframe", { class: "viewer", title: "Tokens of the episode" });
  const tokens = make(
    "details",
    {
      ontoggle: () => {
        if (tokens.open && !frame.src) frame.src = `viewer.html#episode=${encodeURIComponent(id)}`;
      },
    },
    make("summary", {}, "Tokens: roles, masks, logprobs, advantages, versions"),
    again,
    frame,
  );
  const running = runningCalls(id, () => update());
  place.append(facts, tokens, section("Messages", spoken, running.element));
  let calls = -1;
  let state = "";
  const update = async () => {
    if (state && state !== "open" && state !== "prepared") return;
    const said = await get(`/v1/timelines/${encodeURIComponent(id)}/messages`);
    state = said.episode.state;
    facts.replaceChildren(head(said.episode));
    // Not awaited: it lasts as long as the episode.
    if (state === "open") running.follow();
    // An answer may come after that of a later request.
    if (said.calls.length + said.omitted <= calls) return;
    again.hidden = calls < 0 || !frame.src;
    calls = said.calls.length + said.omitted;
    spoken.replaceChildren(...conversation(said));
  };
  await update();
  update.leave = running.leave;
  return update;
}

/** The messages of an episode as items of a list. */
export function conversation(said) {
  return [
    ...(said.omitted ? [make("li", { class: "dim" }, `${said.omitted} earlier calls are left out.`)] : []),
    ...said.calls.flatMap((call) => [
      ...call.messages.map((message) => messageItem(message, "")),
      call.answer
        ? messageItem(call.answer, `${call.agent ? `${call.agent}, ` : ""}${call.tokens} tokens, ${call.finish_reason}, ${clock(call.at)}`)
        : make("li", { class: "dim" }, "The client disconnected before the answer was sent."),
    ]),
  ];
}

function head(row) {
  const parts = Object.entries({ ...row.components, ...row.agent_rewards }).map(([name, value]) => `${name} ${number(value)}`);
  return make(
    "div",
    {},
    make("h2", {}, `Episode ${row.episode_id}`),
    make(
      "p",
      {},
      `${row.kind} episode of task `,
      make("a", { href: `#/episodes?task=${encodeURIComponent(row.task_id)}&outputs=1` }, row.task_id),
      `, ${row.state}, reward ${number(row.reward)}${parts.length ? ` (${parts.join(", ")})` : ""}, claimed ${clock(row.claimed_at)} at version ${row.version} by ${row.client}`,
    ),
    row.reason && make("pre", { class: "reason" }, row.reason),
  );
}

function messageItem(message, note) {
  return make(
    "li",
    { class: `message ${["system", "user", "assistant", "tool"].includes(message.role) ? message.role : ""}` },
    make("div", { class: "dim" }, message.role, message.name ? ` ${message.name}` : "", note ? ` · ${note}` : ""),
    message.reasoning && make("pre", { class: "reasoning" }, message.reasoning),
    message.content && make("pre", {}, message.content),
    message.tool_calls && make("pre", { class: "calls" }, message.tool_calls),
  );
}
