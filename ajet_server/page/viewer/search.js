// Search over all episodes of the page, and the way from hit to hit.

const MOST_HITS = 5000;

/** Ranges {episode, node, start, end} of tokens that a query finds. */
function* find(episodes, vocabulary, query) {
  const ids = /^id:\s*(\d+(?:[\s,]+\d+)*)$/i.exec(query);
  const who = /^(role|agent):\s*(.+)$/i.exec(query);
  for (const episode of episodes) {
    for (let node = 0; node < episode.nodes.length; node++) {
      const each = (start, end) => ({ episode, node, start, end, now: false });
      if (ids) for (const [a, b] of idRuns(episode.nodes[node].ids, ids[1].split(/[\s,]+/).map(Number))) yield each(a, b);
      else if (who) for (const [a, b] of spoken(episode, node, who[1].toLowerCase(), who[2].toLowerCase())) yield each(a, b);
      else for (const [a, b] of textRuns(episode.text(node, vocabulary), query.toLowerCase())) yield each(a, b);
    }
  }
}

function* idRuns(ids, wanted) {
  for (let i = 0; i + wanted.length <= ids.length; i++) {
    if (wanted.every((id, k) => ids[i + k] === id)) yield [i, i + wanted.length];
  }
}

function* spoken(episode, node, kind, wanted) {
  const { roles, by, ids } = episode.nodes[node];
  if (kind === "role") {
    for (const [start, end, role, name] of roles) {
      if (role.toLowerCase() === wanted || name.toLowerCase() === wanted) yield [start, Math.min(end, ids.length)];
    }
  } else if (by.some(([call]) => episode.calls[call].agent.toLowerCase() === wanted)) yield [0, ids.length];
}

function* textRuns({ text, starts }, wanted) {
  const lower = text.toLowerCase();
  // A few characters change their length in lower case; then places would not fit.
  const searched = lower.length === text.length ? lower : text;
  for (let at = searched.indexOf(wanted); at >= 0; at = searched.indexOf(wanted, at + wanted.length)) {
    let first = tokenAt(starts, at);
    // The bytes of one character start at the same place.
    while (first > 0 && starts[first - 1] === starts[first]) first -= 1;
    yield [first, tokenAt(starts, at + wanted.length - 1) + 1];
  }
}

/** The last token that starts at or before a place in the text. */
function tokenAt(starts, place) {
  let low = 0;
  let high = starts.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (starts[middle] <= place) low = middle;
    else high = middle - 1;
  }
  return low;
}

class Search {
  /** @param host {episodes, vocabulary, current(), onHits(), onGo(hit)} */
  constructor(form, input, status, host) {
    this.input = input;
    this.status = status;
    this.host = host;
    this.hits = [];
    this.at = -1;
    this.byNode = new Map();
    this.timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.run(), 120);
    });
    form.addEventListener("submit", (event) => event.preventDefault());
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      this.step(event.shiftKey ? -1 : 1);
    });
  }

  /** Hits in a node of the current episode. */
  of(node) {
    return this.byNode.get(`${this.host.current().number}:${node}`) || [];
  }

  run() {
    clearTimeout(this.timer);
    this.query = this.input.value;
    this.hits = [];
    this.at = -1;
    if (this.query.trim()) {
      const current = this.host.current();
      const order = [...this.host.episodes.slice(current.number), ...this.host.episodes.slice(0, current.number)];
      for (const hit of find(order, this.host.vocabulary, this.query)) {
        if (hit.end > hit.start) this.hits.push(hit);
        if (this.hits.length >= MOST_HITS) break;
      }
    }
    this.byNode = new Map();
    for (const hit of this.hits) {
      const key = `${hit.episode.number}:${hit.node}`;
      if (!this.byNode.has(key)) this.byNode.set(key, []);
      this.byNode.get(key).push(hit);
    }
    this._report();
    this.host.onHits();
  }

  step(by) {
    if (this.query !== this.input.value) this.run();
    if (!this.hits.length) return;
    if (this.at >= 0) this.hits[this.at].now = false;
    this.at = this.at < 0 ? (by > 0 ? 0 : this.hits.length - 1) : (this.at + by + this.hits.length) % this.hits.length;
    this.hits[this.at].now = true;
    this._report();
    this.host.onGo(this.hits[this.at]);
  }

  _report() {
    const total = this.hits.length >= MOST_HITS ? `${grouped(MOST_HITS)}+` : grouped(this.hits.length);
    if (!this.query || !this.query.trim()) this.status.textContent = "";
    else if (!this.hits.length) this.status.textContent = "no hits";
    else this.status.textContent = this.at < 0 ? plural(this.hits.length, "hit") : `${this.at + 1} of ${total}`;
  }
}
