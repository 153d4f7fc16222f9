// The running calls of an episode: their prompts, and what they write, while they write it.

import { ServerError, events } from "./api.js";
import { clock, make, number, visible } from "./dom.js";
import { messageItem } from "./messages.js";

// Of one call; its beginning is left out once it writes more.
const MOST_CHARS = 20_000;

/**
 * A list of the calls that an open episode is making. `follow` begins to follow them unless that is
 * being done, and `leave` ends it. `ended` is awaited when calls have ended, before they are removed.
 */
export function runningCalls(id, ended) {
  const items = new Map();
  const note = make("p", { class: "dim", role: "status" });
  const list = make("ol", { class: "conversation", "aria-label": "Calls that are being answered" });
  let following = null;
  let left = false;

  const say = (text) => {
    // Screen readers read it aloud when it is set, so not with every token.
    if (note.textContent !== text) note.textContent = text;
  };
  const draw = async (said) => {
    const present = new Set(said.calls.map((call) => call.call_id));
    const gone = [...items.keys()].filter((callId) => !present.has(callId));
    for (const call of said.calls) {
      if (!items.has(call.call_id)) {
        items.set(call.call_id, runningItem(call));
        list.append(...items.get(call.call_id).elements);
      }
      items.get(call.call_id).grow(call);
    }
    const count = said.calls.length + said.more;
    say(count ? `${count === 1 ? "1 call is" : `${count} calls are`} being answered${said.more ? `, of which ${said.calls.length} are shown` : ""}.` : "");
    if (gone.length || !said.open) await ended();
    for (const callId of gone) remove(callId);
  };
  const remove = (callId) => {
    for (const element of items.get(callId).elements) element.remove();
    items.delete(callId);
  };
  const follow = async () => {
    if (left || following || document.hidden) return;
    const mine = (following = new AbortController());
    let problem = "";
    try {
      for await (const said of events(`/v1/timelines/${encodeURIComponent(id)}/running`, mine.signal)) await draw(said);
    } catch (error) {
      if (!mine.signal.aborted) problem = `What is being written is not shown. ${error instanceof ServerError ? visible(error.message) : "The connection to the server broke."}`;
    } finally {
      if (following === mine) following = null;
      for (const callId of [...items.keys()]) remove(callId);
      say(problem);
    }
  };
  const stop = () => following?.abort();
  const hide = () => {
    if (document.hidden) stop();
  };
  document.addEventListener("visibilitychange", hide);
  const leave = () => {
    left = true;
    document.removeEventListener("visibilitychange", hide);
    stop();
  };
  return { element: make("div", {}, list, note), follow, leave };
}

function runningItem({ messages, omitted }) {
  const about = make("div", { class: "dim" });
  const text = document.createTextNode("");
  const written = make("pre", {}, text);
  const prompt = messages.map((message) => messageItem(message, ""));
  if (omitted) prompt.unshift(make("li", { class: "dim" }, `${omitted === 1 ? "1 earlier message is" : `${number(omitted)} earlier messages are`} left out.`));
  const elements = [...prompt, make("li", { class: "message assistant running" }, about, written)];
  let tokens = 0;
  const grow = (call) => {
    // Where the reader has scrolled to stays.
    const atEnd = written.scrollHeight - written.scrollTop - written.clientHeight < 8;
    if (call.first === 0) text.data = "";
    else if (call.first > tokens) text.appendData(`\n[${number(call.first - tokens)} tokens are left out]\n`);
    tokens = call.tokens;
    text.appendData(visible(call.text));
    if (text.length > MOST_CHARS) text.deleteData(0, text.length - MOST_CHARS);
    about.textContent = visible(
      ["being written", call.agent, `${number(tokens)} tokens`, call.version === null ? "" : `version ${number(call.version)}`, `began ${clock(call.at)}`].filter(Boolean).join(" · "),
    );
    if (atEnd) written.scrollTop = written.scrollHeight;
  };
  return { elements, grow };
}
