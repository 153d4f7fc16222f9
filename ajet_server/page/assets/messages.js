// A message of a conversation.

import { make } from "./dom.js";

/** A message as an item of a list, with a note in its first line. */
export function messageItem(message, note) {
  return make(
    "li",
    { class: `message ${["system", "user", "assistant", "tool"].includes(message.role) ? message.role : ""}` },
    make("div", { class: "dim" }, message.role, message.name ? ` ${message.name}` : "", note ? ` · ${note}` : ""),
    message.reasoning && make("pre", { class: "reasoning" }, message.reasoning),
    message.content && make("pre", {}, message.content),
    message.tool_calls && make("pre", { class: "calls" }, message.tool_calls),
  );
}
