// The timelines side by side, the trunk they share once. Only what is near the window is in the document.

const CHUNK = 1200;
const GAP = 24;
const COLUMNS = 5;
const DEPTH = 12;
const MOST_LINKS = 12;
const NEAR = "900px";

/** The messages of a chain: a block has pieces [node, start, end, role]. What the template puts between messages
 * stands in front of the next one. */
function blocksOfChain(episode, chain, vocabulary) {
  const blocks = [];
  let gap = [];
  let open = null;
  const begin = (role, name) => {
    blocks.push({ role, name, pieces: gap });
    gap = [];
    return blocks.at(-1);
  };
  for (const node of chain) {
    const size = episode.nodes[node].ids.length;
    for (const [start, end, role, name] of withGaps(episode.nodes[node].roles, size)) {
      const piece = [node, start, end, role];
      if (!role) {
        // The line end behind a message stands with it.
        const ends = blocks.length && !gap.length ? lineEnd(episode.nodes[node].ids, start, end, vocabulary) : start;
        if (ends > start) blocks.at(-1).pieces.push([node, start, ends, ""]);
        if (ends < end) gap.push([node, ends, end, ""]);
        if (count(gap) > GAP) begin("", "");
        open = null;
        continue;
      }
      // A message that a node ends in goes on in the next one.
      if (!(open && start === 0 && open.role === role && open.name === name)) open = begin(role, name);
      open.pieces.push(piece);
      if (end < size) open = null;
    }
  }
  if (gap.length && blocks.length) blocks.at(-1).pieces.push(...gap);
  else if (gap.length) begin("", "");
  return blocks.flatMap(parts);
}

/** The place behind a first token that is nothing but line ends. */
function lineEnd(ids, start, end, vocabulary) {
  return start < end && /^\n+$/.test(vocabulary.get(ids[start])) ? start + 1 : start;
}

/** Spans of roles, and of none in between, within the tokens that the page holds. */
function withGaps(roles, size) {
  const found = [];
  let at = 0;
  const add = (end, role, name) => {
    if (Math.min(end, size) <= at) return;
    found.push([at, Math.min(end, size), role, name]);
    at = Math.min(end, size);
  };
  for (const [start, end, role, name] of roles) {
    add(start, "", "");
    add(end, role, name);
  }
  add(size, "", "");
  return found;
}

const count = (pieces) => pieces.reduce((sum, piece) => sum + piece[2] - piece[1], 0);

/** A long block in parts. Of long context only the first is shown; `group.shown` counts. */
function parts(block) {
  const found = [[]];
  let room = CHUNK;
  for (let [node, start, end, role] of block.pieces) {
    while (end > start) {
      if (!room) {
        found.push([]);
        room = CHUNK;
      }
      const stop = Math.min(end, start + room);
      found.at(-1).push([node, start, stop, role]);
      room -= stop - start;
      start = stop;
    }
  }
  const group = { blocks: [], shown: found.length, more: null, size: count(block.pieces) };
  found.forEach((pieces, part) => group.blocks.push({ ...block, pieces, part, group }));
  return group.blocks;
}

class TreeView {
  /** @param host {vocabulary, mode(), onPick(node, offset), onHover(node, offset, box), hits(node)} */
  constructor(element, scroller, host) {
    this.element = element;
    this.scroller = scroller;
    this.host = host;
    element.addEventListener("mouseover", (event) => this._point(event));
    element.addEventListener("mouseleave", () => host.onHover(null));
    element.addEventListener("click", (event) => {
      const place = placeOf(event.target);
      if (place) host.onPick(...place);
    });
  }

  show(episode) {
    this.observer?.disconnect();
    // In a narrow window the page as a whole is scrolled.
    const root = getComputedStyle(this.scroller).overflowY === "visible" ? null : this.scroller;
    this.observer = new IntersectionObserver((entries) => this._seen(entries), { root, rootMargin: NEAR });
    this.episode = episode;
    this.branches = new Map();
    this.blocks = new Map();
    this.filled = new Set();
    this.selected = null;
    this._columns = 0;
    this.element.replaceChildren();
    this._fork(this.element, episode.roots, 0);
  }

  /** Show all tokens anew: their colours or hits changed. */
  refresh() {
    for (const block of this.filled) this._fill(block);
  }

  /** Bring a token into view; false if it was cut from the page. */
  reveal(node, offset, select = true) {
    if (offset >= this.episode.nodes[node].ids.length) return false;
    const heads = [];
    for (let at = node; at >= 0; at = this.episode.nodes[heads[0]].parent) heads.unshift(this.episode.head(at));
    for (const head of heads) this._expand(this.branches.get(head));
    const block = this._blockOf(node, offset);
    if (block.part >= block.group.shown) this._showParts(block.group, block.part + 1);
    this._fill(block);
    const span = this._span(block, node, offset);
    if (select) this.select(node, offset);
    span.scrollIntoView({ block: "center", inline: "nearest" });
    return true;
  }

  /** Bring the beginning of a node's branch into view. */
  revealBranch(node) {
    const head = this.episode.head(node);
    if (this.episode.nodes[head].ids.length) this.reveal(head, 0, false);
    const branch = this.branches.get(head);
    if (branch) branch.element.scrollIntoView({ block: "start", inline: "start" });
  }

  select(node, offset) {
    this.unselect();
    this.selected = [node, offset];
    const block = this._blockOf(node, offset);
    if (this.filled.has(block)) this._span(block, node, offset).classList.add("sel");
  }

  unselect() {
    this.element.querySelector(".sel")?.classList.remove("sel");
    this.selected = null;
  }

  _branch(node, depth, collapsed) {
    const episode = this.episode;
    const chain = episode.chain(node);
    const children = episode.nodes[chain.at(-1)].children;
    const element = make("section", children.length ? "branch" : "branch leaf");
    const branch = { element, chain, children, depth, built: false };
    this.branches.set(node, branch);
    branch.toggle = button("toggle", () => (element.classList.contains("collapsed") ? this._expand(branch) : this._collapse(branch)), "");
    branch.toggle.append(make("span", "arrow", "\u25be"), make("span", "", chainLabel(episode, chain)));
    element.append(make("header", "branch-head", branch.toggle));
    if (collapsed || depth > DEPTH) this._collapse(branch);
    else this._expand(branch);
    return element;
  }

  _collapse(branch) {
    branch.element.classList.add("collapsed");
    branch.toggle.setAttribute("aria-expanded", "false");
    branch.toggle.title = "Show this branch";
  }

  _expand(branch) {
    branch.element.classList.remove("collapsed");
    branch.toggle.setAttribute("aria-expanded", "true");
    branch.toggle.title = "Fold this branch";
    if (branch.built) return;
    branch.built = true;
    const body = make("div", "branch-body");
    branch.element.append(body);
    for (const block of blocksOfChain(this.episode, branch.chain, this.host.vocabulary)) this._addBlock(block, body);
    const cut = branch.chain.reduce((sum, node) => sum + this.episode.nodes[node].cut, 0);
    if (cut) body.append(make("p", "cut", `${plural(cut, "token")} not in this page`));
    if (branch.children.length) this._fork(branch.element, branch.children, branch.depth + 1);
    else this._columns += 1;
  }

  /** Branches side by side, and above them where to find each: some are wide. */
  _fork(place, heads, depth) {
    const row = make("div", "branches");
    if (heads.length > 1) {
      const bar = make("nav", "fork-bar", make("span", "dim", `${heads.length} branches:`));
      bar.setAttribute("aria-label", "Branches");
      for (const head of heads.slice(0, MOST_LINKS)) {
        bar.append(button("", () => this.revealBranch(head), chainLabel(this.episode, this.episode.chain(head))));
      }
      if (heads.length > MOST_LINKS) bar.append(make("span", "dim", "and more"));
      place.append(bar);
    }
    place.append(row);
    heads.forEach((head, i) => row.append(this._branch(head, depth, i > 0 && this._columns >= COLUMNS)));
  }

  _addBlock(block, body) {
    block.element = make("article", `block ${block.role ? "" : "template"}`);
    if (block.part === 0) block.element.append(this._label(block));
    block.text = make("div", "text");
    block.text.style.minHeight = `${this._estimate(block)}px`;
    block.element.append(block.text);
    for (const [node] of block.pieces) {
      if (!this.blocks.has(node)) this.blocks.set(node, []);
      this.blocks.get(node).push(block);
    }
    body.append(block.element);
    block.element.block = block;
    this.observer.observe(block.element);
    if (block.part > 0 && block.part === block.group.blocks.length - 1) {
      const sampled = block.pieces.some(([node]) => this.episode.nodes[node].by.length);
      this._showParts(block.group, sampled ? block.group.blocks.length : 1);
    }
  }

  /** Show the first parts of a long message, and a button for the next ones. */
  _showParts(group, shown) {
    group.shown = shown;
    group.blocks.forEach((block, part) => (block.element.hidden = part >= shown));
    group.more?.remove();
    const left = group.size - shown * CHUNK;
    if (left <= 0) return;
    group.more = button("more", () => this._showParts(group, shown + 4), `Show more of this message (${plural(left, "token")} left)`);
    group.blocks[shown - 1].element.after(group.more);
  }

  _label(block) {
    const label = make("header", "block-head");
    label.append(make("b", `tag role-${ROLES.includes(block.role) ? block.role : block.role ? "other" : "none"}`, plain(block.role || "template")));
    if (block.name) label.append(make("span", "", plain(block.name)));
    const by = block.pieces.map(([node]) => this.episode.nodes[node].by).find((found) => found.length);
    if (by) {
      const calls = by.map(([call]) => this.episode.calls[call]);
      const first = calls[0];
      label.append(make("span", "", `call ${calls.map((call) => call.index).join(", ")}`));
      if (first.agent) label.append(make("span", "", plain(first.agent)));
      label.append(make("span", "", `policy ${[...new Set(first.versions.map((run) => run[0]))].join("+")}`));
      if (first.advantage != null) {
        const tone = first.advantage > 0 ? "good" : first.advantage < 0 ? "bad" : "";
        label.append(make("span", tone, `advantage ${number(first.advantage, 3, true)}`));
      }
      if (first.finish !== "stop") label.append(make("span", "bad", first.finish));
    }
    label.append(make("span", "dim", plural(block.group.size, "token")));
    return label;
  }

  /** Height of a block that is not in the document yet. */
  _estimate(block) {
    let lines = 1;
    let column = 0;
    for (const [node, start, end] of block.pieces) {
      for (let i = start; i < end; i++) {
        const text = this.host.vocabulary.show(this.episode.nodes[node].ids[i]).text;
        column += text.length;
        if (text.endsWith("\n") || column > 64) {
          lines += 1;
          column = 0;
        }
      }
    }
    return lines * 21;
  }

  _seen(entries) {
    for (const entry of entries) {
      const block = entry.target.block;
      if (entry.isIntersecting) {
        if (!this.filled.has(block)) this._fill(block);
      } else if (this.filled.delete(block)) {
        block.text.style.minHeight = `${block.text.offsetHeight}px`;
        block.text.replaceChildren();
      }
    }
  }

  _fill(block) {
    const episode = this.episode;
    const mode = this.host.mode();
    const spans = [];
    for (const [node, start, end, role] of block.pieces) {
      const { ids, by } = episode.nodes[node];
      const hits = this.host.hits(node).filter((hit) => hit.end > start && hit.start < end);
      let next = 0;
      for (let i = start; i < end; i++) {
        const shown = this.host.vocabulary.show(ids[i]);
        const span = document.createElement("span");
        let classes = `t ${shown.kind} ${colourClass(mode, episode, node, i, role)}`;
        if (by.length) classes += " s";
        while (next < hits.length && hits[next].end <= i) next += 1;
        if (next < hits.length && hits[next].start <= i) classes += hits[next].now ? " hit now" : " hit";
        if (this.selected && this.selected[0] === node && this.selected[1] === i) classes += " sel";
        span.className = classes;
        span.textContent = shown.text;
        span.dataset.t = `${node}:${i}`;
        spans.push(span);
      }
    }
    block.text.replaceChildren(...spans);
    block.text.style.minHeight = "";
    this.filled.add(block);
  }

  _blockOf(node, offset) {
    return (this.blocks.get(node) || []).find((block) =>
      block.pieces.some(([each, start, end]) => each === node && start <= offset && offset < end));
  }

  _span(block, node, offset) {
    let at = 0;
    for (const [each, start, end] of block.pieces) {
      if (each === node && start <= offset && offset < end) return block.text.children[at + offset - start];
      at += end - start;
    }
    return null;
  }

  _point(event) {
    const place = placeOf(event.target);
    if (place) this.host.onHover(...place, event.target.getBoundingClientRect());
    else this.host.onHover(null);
  }
}

/** [node, offset] of a token's element. */
function placeOf(element) {
  return element.dataset && element.dataset.t ? element.dataset.t.split(":").map(Number) : null;
}

const short = (name) => plain(name.length > 32 ? `${name.slice(0, 32)}...` : name);

/** Who sampled in a chain, and how much. */
function chainLabel(episode, chain) {
  const calls = [...new Set(chain.flatMap((node) => episode.nodes[node].by.map(([call]) => call)))].sort((a, b) => a - b);
  const agents = [...new Set(calls.map((call) => episode.calls[call].agent).filter(Boolean))];
  const tokens = chain.reduce((sum, node) => sum + episode.size(node), 0);
  const parts = [];
  if (calls.length) {
    const first = episode.calls[calls[0]].index;
    const last = episode.calls[calls.at(-1)].index;
    parts.push(first === last ? `call ${first}` : `calls ${first}\u2013${last}`);
  } else {
    const [first, last] = episode.nodes[chain[0]].below;
    parts.push(first === last ? `context of call ${first}` : `context of calls ${first}\u2013${last}`);
  }
  if (agents.length) parts.push(agents.slice(0, 3).map(short).join(", ") + (agents.length > 3 ? ", ..." : ""));
  parts.push(plural(tokens, "token"));
  return parts.join(" \u00b7 ");
}
