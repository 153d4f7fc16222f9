// All there is to know about one token: beside the pointer, and pinned in the panel.

/** Rows of [name, value] about a token, without the calls that sampled it. */
function tokenRows(episode, vocabulary, node, offset) {
  const id = episode.nodes[node].ids[offset];
  const text = vocabulary.get(id);
  const [role, name] = episode.role(node, offset);
  const sampled = episode.samplings(node, offset);
  const trained = sampled.some((by) => by.advantage != null);
  const rows = [["token", String(id)]];
  if (Array.isArray(text)) rows.push(["bytes", vocabulary.show(id).text]);
  else rows.push(["text", text === undefined ? "unknown" : make("code", "literal", plain(text).replaceAll("\u21b5\n", "\u21b5"))]);
  rows.push(["role", role ? plain(role + (name ? ` (${name})` : "")) : "none (template)"]);
  rows.push(["mask", sampled.length ? (trained ? "sampled, trained" : "sampled, not trained") : "context"]);
  return rows;
}

/** What matters most about what one call says of a token. */
function briefRows(by) {
  const rows = [["logprob, engine", number(by.logprob)], ["logprob, trainer", number(by.trainer)]];
  if (by.difference != null) rows.push(["difference", number(by.difference, 6, true)]);
  rows.push(["advantage", by.advantage == null ? "not trained" : number(by.advantage, 4, true)]);
  rows.push(["sampled by", `${plain(by.call.agent) || "unnamed"}, call ${by.call.index}, policy ${by.policy}`]);
  return rows;
}

/** Rows about what one call says of a token. */
function samplingRows(by) {
  const rows = [
    ["call", `${by.call.index} (${by.call.id})`],
    ["agent", plain(by.call.agent) || "unnamed"],
    ["policy version", String(by.policy)],
    ["logprob, engine", number(by.logprob)],
  ];
  if (by.logprob != null) rows.push(["probability", number(Math.exp(by.logprob))]);
  rows.push(["logprob, trainer", number(by.trainer)]);
  if (by.difference != null) {
    rows.push(["difference", number(by.difference, 6, true)]);
    rows.push(["ratio", number(Math.exp(by.difference), 6)]);
  }
  rows.push(["advantage", by.advantage == null ? "not trained" : number(by.advantage, 4, true)]);
  if (by.call.reward != null) rows.push(["reward of the call", brief(by.call.reward)]);
  rows.push(["temperature", brief(by.call.temperature)]);
  if (by.call.finish !== "stop") rows.push(["finish reason", by.call.finish]);
  if (by.call.drift) rows.push(["would have changed", `${grouped(by.call.drift)} tokens, kept as sampled`]);
  if (by.call.echo) rows.push(["answer came back with another", by.call.echo]);
  if (by.call.ignored) rows.push(["without effect", by.call.ignored]);
  return rows;
}

function definitionList(rows) {
  const list = make("dl", "rows");
  for (const [name, value] of rows) list.append(make("dt", "", name), make("dd", "", value));
  return list;
}

/** The token beside the pointer. */
class Tip {
  constructor(element) {
    this.element = element;
  }

  show(episode, vocabulary, node, offset, box) {
    const sampled = episode.samplings(node, offset);
    const parts = [definitionList(tokenRows(episode, vocabulary, node, offset))];
    if (sampled.length) parts.push(definitionList(briefRows(sampled[0])));
    if (sampled.length > 1) parts.push(make("p", "dim", `and ${sampled.length - 1} more: click`));
    this.element.replaceChildren(...parts);
    this.element.hidden = false;
    const tip = this.element.getBoundingClientRect();
    const left = Math.max(8, Math.min(box.left, innerWidth - tip.width - 8));
    const below = box.bottom + 6;
    const top = below + tip.height < innerHeight ? below : Math.max(8, box.top - tip.height - 6);
    this.element.style.left = `${left}px`;
    this.element.style.top = `${top}px`;
  }

  hide() {
    this.element.hidden = true;
  }
}

/** The panel with the selected token. */
class Details {
  constructor(element) {
    this.element = element;
    this.clear();
  }

  clear() {
    this.element.replaceChildren(make("p", "dim hint", "Point at a token to see what is known about it; click to keep it here."));
  }

  show(episode, vocabulary, node, offset) {
    const ids = episode.nodes[node].ids;
    const around = make("p", "around");
    around.append(plain(vocabulary.join(ids.slice(Math.max(0, offset - 12), offset))));
    around.append(make("mark", "", vocabulary.show(ids[offset]).text));
    around.append(plain(vocabulary.join(ids.slice(offset + 1, offset + 13))));
    const parts = [make("h2", "", "Token"), around, definitionList(tokenRows(episode, vocabulary, node, offset))];
    const place = `${grouped(episode.nodes[node].start + offset)} of its timeline`;
    parts.at(-1).append(make("dt", "", "position"), make("dd", "", place));
    const sampled = episode.samplings(node, offset);
    if (sampled.length > 1) parts.push(make("p", "dim", `${sampled.length} calls sampled it:`));
    for (const by of sampled) parts.push(definitionList(samplingRows(by)));
    this.element.replaceChildren(...parts);
  }
}
