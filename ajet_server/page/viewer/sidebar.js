// Beside the tokens: the episodes, an outline of the timelines, the forks, and a table of the calls.

const REASONS = {
  start: "begins another conversation",
  again: "repeats an earlier request",
  back: "goes back to an earlier turn",
  rewritten: "rewrites a message of its history",
  inserted: "inserts a message into its history",
  removed: "removes a message from its history",
  tools: "changes the tools it offers",
  reasoning: "the template leaves out earlier reasoning",
  tokens: "could not be continued token by token",
};
const MOST_ROWS = 400;

function showEpisodes(list, episodes, onChoose) {
  list.replaceChildren(
    ...episodes.map((episode) => {
      const { summary } = episode;
      const facts = [`${plural(summary.calls, "call")}`, plural(summary.tokens, "token")];
      if (summary.forks) facts.push(plural(summary.forks, "fork"));
      if (episode.cut) facts.push(episode.nodes.length ? "partly cut" : "cut");
      const top = make("span", "row", make("b", "", plain(summary.task_id)), make("b", "reward", brief(summary.reward)));
      const item = button("item", () => onChoose(episode), top, make("span", "dim", facts.join(" \u00b7 ")));
      item.title = summary.episode_id;
      return make("li", "", item);
    }),
  );
}

function markEpisode(list, number) {
  [...list.children].forEach((item, i) => {
    const current = i === number;
    if (current) item.firstChild.setAttribute("aria-current", "true");
    else item.firstChild.removeAttribute("aria-current");
    if (current) item.scrollIntoView({ block: "nearest" });
  });
}

/** One line for each chain of nodes, indented where timelines fork. */
function showOutline(list, episode, onGo) {
  const items = [];
  const waiting = episode.roots.map((root) => [root, 0]).reverse();
  while (waiting.length && items.length < MOST_ROWS) {
    const [head, depth] = waiting.pop();
    const chain = episode.chain(head);
    const item = button("item", () => onGo(head), chainLabel(episode, chain));
    item.classList.add(`indent-${Math.min(depth, 8)}`);
    items.push(make("li", "", item));
    waiting.push(...episode.nodes[chain.at(-1)].children.map((child) => [child, depth + 1]).reverse());
  }
  if (waiting.length) items.push(make("li", "dim", "and more"));
  list.replaceChildren(...items);
}

function showForks(list, episode, onGo) {
  const items = episode.forks.slice(0, MOST_ROWS).map((fork) => {
    const call = episode.calls[fork.call];
    const index = call ? call.index : "?";
    const before = fork.before == null || !episode.calls[fork.before] ? "" : ` (parts from call ${episode.calls[fork.before].index})`;
    const cost = fork.recomputedTokens ? make("b", "bad", `${plural(fork.recomputedTokens, "token")} recomputed`) : make("span", "dim", "costs nothing");
    const top = make("span", "row", make("b", "", `call ${index}: ${fork.kind}`), cost);
    const parts = [top, make("span", "dim", (REASONS[fork.kind] || fork.kind) + before)];
    if (fork.message >= 0) parts.push(make("span", "dim", `message ${fork.message} (${plain(fork.role)}), field ${fork.field}`));
    const item = make("li", "", button("item", () => onGo(fork), ...parts));
    if (fork.diff.length) item.append(diffView(fork.diff));
    return item;
  });
  if (episode.forks.length > MOST_ROWS) items.push(make("li", "dim", `and ${episode.forks.length - MOST_ROWS} more`));
  if (!items.length) items.push(make("li", "dim", "none in this episode"));
  list.replaceChildren(...items);
}

function diffView(diff) {
  const element = make("pre", "diff");
  for (const [kind, text] of diff) {
    const tag = kind === "gone" ? "del" : kind === "new" ? "ins" : "span";
    element.append(make(tag, "", plain(text)));
  }
  return element;
}

function showHead(element, episode) {
  const { summary } = episode;
  const title = make("h2", "", plain(summary.task_id));
  const facts = [
    ["episode", summary.episode_id],
    ["group", plain(summary.group)],
    ["state", summary.kind === "eval" ? `${summary.state} (eval)` : summary.state],
    ["reward", summary.reward == null ? "none" : brief(summary.reward)],
    ["step", summary.step == null ? "none" : String(summary.step)],
    ["timelines", String(summary.timelines)],
    ["tokens", `${grouped(summary.tokens)} (${grouped(summary.tokens_raw)} raw)`],
  ];
  if (summary.recomputed_tokens) facts.push(["recomputed", plural(summary.recomputed_tokens, "token")]);
  if (summary.calls_aborted) facts.push(["aborted", plural(summary.calls_aborted, "call")]);
  facts.push(["merged by", episode.altered ? `${episode.merger} (${plural(episode.altered, "token")} altered)` : episode.merger]);
  for (const [agent, reward] of Object.entries(episode.agentRewards)) facts.push([`reward of ${plain(agent)}`, brief(reward)]);
  if (episode.tag) facts.push(["tag", plain(episode.tag)]);
  if (episode.reason) facts.push(["reason", plain(episode.reason)]);
  const list = make("dl", "facts");
  for (const [name, value] of facts) list.append(make("div", "", make("dt", "", name), make("dd", "", value)));
  element.replaceChildren(title, list);
  if (!episode.nodes.length) {
    const why = episode.cut
      ? "The tokens of this episode are not in this page, which was full before it. Write a page of this episode alone: ajet inspect RUN EPISODE --html FILE."
      : "This episode has no tokens.";
    element.append(make("p", "notice", why));
  }
}

function showCalls(section, table, episode, onGo) {
  section.hidden = !episode.calls.length;
  section.querySelector("summary").textContent = plural(episode.calls.length, "call");
  const columns = ["call", "agent", "finish", "prompt", "sampled", "logprob", "trainer", "most different", "advantage", "reward"];
  const head = make("tr", "", ...columns.map((name) => make("th", "", name)));
  const rows = episode.calls.slice(0, MOST_ROWS).map((call, i) => {
    const differences = call.trainer.map((value, k) => (value == null || call.logprobs[k] == null ? 0 : value - call.logprobs[k]));
    const most = differences.reduce((found, value) => (Math.abs(value) > Math.abs(found) ? value : found), 0);
    const go = button("link", () => onGo(i), String(call.index));
    go.title = call.id;
    const cells = [
      go, plain(call.agent), call.finish, grouped(call.prompt), grouped(call.logprobs.length), number(mean(call.logprobs)),
      call.trainer.length ? number(mean(call.trainer)) : "", call.trainer.length ? number(most, 4, true) : "",
      call.advantage == null ? "" : number(call.advantage, 3, true), brief(call.reward),
    ];
    return make("tr", call.finish === "abort" ? "aborted" : "", ...cells.map((cell) => make("td", "", cell)));
  });
  table.replaceChildren(make("thead", "", head), make("tbody", "", ...rows));
  if (episode.calls.length > MOST_ROWS) table.append(make("caption", "", `the first ${MOST_ROWS}`));
}
