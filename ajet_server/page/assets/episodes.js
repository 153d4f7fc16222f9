// Episodes: lists, and one of them with its messages and tokens, also while it is open.

import { get } from "./api.js";
import { clock, duration, make, number, pages, partOf, section, skipped, table } from "./dom.js";
import { messageItem } from "./messages.js";
import { runningCalls } from "./running.js";

const STATES = ["", "open", "ended", "aborted", "prepared"];
const ORDERS = [
  ["newest", "newest first"],
  ["highest", "highest reward first"],
  ["lowest", "lowest reward first"],
];

// More columns than these do not fit; the page of an episode has all.
const COMPONENTS = 6;
const PAGE = 200;
const MOST_SKIPPED = 20_000;

// The episodes of the last list, in its order.
let listed = [];

/** The table of `/v1/episodes`, with what the model wrote if it was asked for. */
export function episodeTable(caption, rows) {
  const outputs = rows.some((row) => row.output);
  const components = [...new Set(rows.flatMap((row) => Object.keys(row.components)))].slice(0, COMPONENTS);
  listed = rows.map((row) => row.episode_id);
  return table(
    caption,
    [
      ["episode", (row) => make("a", { href: `#/episode/${encodeURIComponent(row.episode_id)}` }, row.episode_id)],
      ["task", (row) => make("a", { href: `#/episodes?task=${encodeURIComponent(row.task_id)}&outputs=1` }, row.task_id)],
      ["kind", (row) => `${row.kind}${row.tag ? ` ${row.tag}` : ""}`],
      ["state", (row) => `${row.state}${row.cause ? `: ${row.cause.replaceAll("_", " ")}` : ""}`],
      ["reward", (row) => number(row.reward), true],
      ...components.map((name) => [name, (row) => number(row.components[name]), true]),
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
    make("label", {}, " client ", field("client", 12)),
    make("label", {}, " ", pick("order", ORDERS)),
    make("label", {}, " ", outputs, " what the model wrote"),
  );
  const list = make("div");
  place.append(form, list);
  const update = async () => {
    const wanted = Object.fromEntries(["state", "kind", "task", "step", "cause", "client", "order"].map((name) => [name, query.get(name)]));
    if (wanted.step && !/^[1-9][0-9]{0,8}$/.test(wanted.step)) return list.replaceChildren(make("p", { class: "dim" }, `${wanted.step} is not a step: the first one is step 1.`));
    const skip = skipped(query, MOST_SKIPPED);
    const { episodes: rows, endings: shared, more, total } = await get("/v1/episodes", { ...wanted, limit: PAGE, skip, outputs: query.get("outputs") === "1" });
    const part = partOf("episodes", skip, rows, more, total === null ? "more than 2,000" : number(total));
    list.replaceChildren(
      endings(shared),
      rows.length ? episodeTable(part, rows) : make("p", { class: "dim" }, "No episode matches."),
      pages("episodes", query, skip, PAGE, more && skip + PAGE <= MOST_SKIPPED),
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
  const turns = make("p", { class: "pages" });
  const around = await neighbours(id);
  turns.append(...around.flatMap((other, i) => (other ? [make("a", { href: `#/episode/${encodeURIComponent(other)}`, "aria-keyshortcuts": "[]"[i] }, i ? "next episode" : "previous episode"), " "] : [])));
  const turn = (key) => {
    const other = around["[]".indexOf(key)];
    if (other) app.go(`episode/${encodeURIComponent(other)}`);
  };
  const onKey = (event) => {
    const typing = event.target instanceof Element && event.target.matches("input, select, textarea");
    if (!typing && !event.ctrlKey && !event.metaKey && (event.key === "[" || event.key === "]")) turn(event.key);
  };
  // The viewer of tokens has the keyboard when it is used.
  const onMessage = (event) => event.origin === location.origin && event.source === frame.contentWindow && typeof event.data?.turn === "string" && turn(event.data.turn);
  addEventListener("keydown", onKey);
  addEventListener("message", onMessage);
  place.append(turns, facts, tokens, section("Messages", spoken, running.element));
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
  update.leave = () => {
    removeEventListener("keydown", onKey);
    removeEventListener("message", onMessage);
    running.leave();
  };
  try {
    await update();
  } catch (error) {
    update.leave();
    throw error;
  }
  return update;
}

/** The episodes before and after one in the last list, or among the newest ones; null if there is none. */
async function neighbours(id) {
  if (!listed.includes(id)) listed = (await get("/v1/episodes", { limit: PAGE })).episodes.map((row) => row.episode_id);
  const at = listed.indexOf(id);
  return at < 0 ? [null, null] : [listed[at - 1] ?? null, listed[at + 1] ?? null];
}

/** Goes to the episode of a step with the highest or the lowest reward. */
export async function exampleView(place, app, { id, query }) {
  const order = query.get("order") === "lowest" ? "lowest" : "highest";
  const { episodes } = await get("/v1/episodes", { step: id, order, limit: 1 });
  if (episodes.length) location.replace(`#/episode/${encodeURIComponent(episodes[0].episode_id)}`);
  else place.append(make("p", { class: "dim" }, `Step ${id} has no episode.`));
  return null;
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
