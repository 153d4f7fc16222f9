// Puts the page together.

const KEYS = [
  ["/", "search"],
  ["Enter or n", "next hit (Shift+Enter or N: previous)"],
  ["1 to 5", "colour by role, logprob, difference, advantage, policy version"],
  ["Left, Right", "previous, next token"],
  ["Shift+Left, Shift+Right", "the branch beside"],
  ["[ and ]", "previous, next episode"],
  ["Esc", "let go of the token, or leave the search"],
  ["?", "this help"],
];

class Page {
  constructor(data) {
    this.data = data;
    this.vocabulary = new Vocabulary(data.vocabulary);
    this.episodes = data.episodes.map((raw, number) => new Episode(raw, number));
    this.mode = MODES[0];
    this.episode = null;
    this.details = new Details($("details"));
    this.tip = new Tip($("tip"));
    this.tree = new TreeView($("tree"), $("main"), {
      vocabulary: this.vocabulary,
      mode: () => this.mode,
      hits: (node) => this.search.of(node),
      onPick: (node, offset) => this.pick(node, offset),
      onHover: (node, offset, box) =>
        node == null ? this.tip.hide() : this.tip.show(this.episode, this.vocabulary, node, offset, box),
    });
    this.search = new Search($("search"), $("query"), $("hits"), {
      episodes: this.episodes,
      vocabulary: this.vocabulary,
      current: () => this.episode,
      onHits: () => this.tree.refresh(),
      onGo: (hit) => this.go(hit),
    });
    this._build();
    this._listen();
    const wanted = new URLSearchParams(location.hash.slice(1)).get("episode");
    if (this.episodes.length) this.open(this.episodes.find((each) => each.summary.episode_id === wanted) || this.episodes[0]);
  }

  _build() {
    $("title").textContent = this.data.title;
    document.body.classList.toggle("single", this.episodes.length === 1);
    const notices = [];
    if (this.data.textProblem) notices.push(`Tokens are shown as ids: ${this.data.textProblem}.`);
    if (this.data.tokensCut) {
      notices.push(
        `This page holds ${grouped(this.data.maxTokens)} tokens; ${grouped(this.data.tokensCut)} more are left out. ` +
          "Shortened episodes are marked.",
      );
    }
    $("notices").replaceChildren(...notices.map((text) => make("p", "notice", plain(text))));
    MODES.forEach((mode, i) => {
      const input = make("input");
      Object.assign(input, { type: "radio", name: "mode", value: mode.name, checked: i === 0 });
      input.addEventListener("change", () => this.colour(mode));
      $("modes").append(make("label", "", input, make("span", "", mode.label)));
    });
    $("episodes-section").hidden = this.episodes.length < 2;
    $("episode-count").textContent = String(this.episodes.length);
    showEpisodes($("episodes"), this.episodes, (episode) => this.open(episode));
    $("sentences").replaceChildren(...this.data.sentences.map((text) => make("li", "", plain(text))));
    for (const [key, what] of KEYS) $("keys").append(make("dt", "", make("kbd", "", key)), make("dd", "", what));
  }

  open(episode) {
    if (this.episode === episode) return;
    this.episode = episode;
    this.tip.hide();
    this.details.clear();
    showHead($("episode-head"), episode);
    showCalls($("calls-section"), $("calls"), episode, (call) => this.goToCall(call));
    showOutline($("outline"), episode, (node) => this.tree.revealBranch(node));
    showForks($("forks"), episode, (fork) => this.goToCall(fork.call));
    $("fork-count").textContent = String(episode.forks.length);
    $("forks-section").classList.toggle("none", episode.forks.length + this.data.sentences.length === 0);
    this.tree.show(episode);
    $("main").scrollTo(0, 0);
    markEpisode($("episodes"), episode.number);
    this._legend();
    if (this.episodes.length > 1) history.replaceState(null, "", `#episode=${encodeURIComponent(episode.summary.episode_id)}`);
  }

  colour(mode) {
    this.mode = mode;
    // The colours of roles would mean something else beside those of other modes.
    document.body.dataset.mode = mode.name;
    document.querySelector(`input[name=mode][value=${mode.name}]`).checked = true;
    this._legend();
    this.tree.refresh();
  }

  _legend() {
    const entries = this.mode.legend(this.episode);
    $("legend").replaceChildren(...entries.map(([name, text]) => make("span", "key", make("i", `swatch ${name}`), text)));
  }

  pick(node, offset) {
    this.tree.select(node, offset);
    this.details.show(this.episode, this.vocabulary, node, offset);
    this.tip.hide();
  }

  go(hit) {
    this.open(hit.episode);
    this.tree.refresh();
    if (this.tree.reveal(hit.node, hit.start)) this.pick(hit.node, hit.start);
  }

  goToCall(number) {
    const place = this.episode.firstSampled(number);
    if (place && this.tree.reveal(place.node, place.offset)) this.pick(place.node, place.offset);
  }

  letGo() {
    this.tree.unselect();
    this.tip.hide();
    this.details.clear();
  }

  /** One token on or back; at a fork into its first branch. */
  move(by) {
    if (!this.tree.selected) return this._to(this.episode.roots[0], 0);
    let [node, offset] = this.tree.selected;
    const { nodes } = this.episode;
    offset += by;
    if (offset < 0) {
      node = nodes[node].parent;
      if (node < 0) return;
      offset = nodes[node].ids.length - 1;
    } else if (offset >= nodes[node].ids.length) {
      node = nodes[node].children[0];
      offset = 0;
    }
    this._to(node, offset);
  }

  /** To the branch beside. */
  beside(by) {
    if (!this.tree.selected) return;
    const head = this.episode.head(this.tree.selected[0]);
    const parent = this.episode.nodes[head].parent;
    const siblings = parent < 0 ? this.episode.roots : this.episode.nodes[parent].children;
    this._to(siblings[siblings.indexOf(head) + by], 0);
  }

  _to(node, offset) {
    if (node !== undefined && this.tree.reveal(node, offset)) this.pick(node, offset);
  }

  _listen() {
    $("hit-next").addEventListener("click", () => this.search.step(1));
    $("hit-back").addEventListener("click", () => this.search.step(-1));
    $("help-open").addEventListener("click", () => $("help").showModal());
    document.addEventListener("scroll", () => this.tip.hide(), { passive: true, capture: true });
    matchMedia("(max-width: 720px)").addEventListener("change", () => this.tree.show(this.episode));
    document.addEventListener("keydown", (event) => this._key(event));
  }

  _key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
    const typing = event.target.matches("input[type=search]");
    if (event.key === "Escape") {
      // Browsers would empty the field, and with it the hits.
      event.preventDefault();
      if (typing) event.target.blur();
      this.letGo();
      return;
    }
    if (typing || (event.target.matches("input") && event.key.startsWith("Arrow"))) return;
    const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (side) event.shiftKey ? this.beside(side) : this.move(side);
    else if (event.key === "/") $("query").select();
    else if (event.key === "n" || event.key === "N") this.search.step(event.key === "n" ? 1 : -1);
    else if (event.key === "[" || event.key === "]") this._turn(event.key === "]" ? 1 : -1);
    else if (event.key === "?") $("help").showModal();
    else if (MODES[Number(event.key) - 1]) this.colour(MODES[Number(event.key) - 1]);
    else return;
    event.preventDefault();
  }

  _turn(by) {
    const next = this.episodes[this.episode.number + by];
    if (next) this.open(next);
    // The live page has the other episodes.
    else if (this.data.live && parent !== window) parent.postMessage({ turn: by > 0 ? "]" : "[" }, location.origin);
  }
}

function $(id) {
  return document.getElementById(id);
}

/** In the live page: shows the episode that the address names, with the tab's token. */
async function openFromServer() {
  const id = new URLSearchParams(location.hash.slice(1)).get("episode");
  const headers = { authorization: `Bearer ${sessionStorage.getItem("ajet-token")}` };
  let problem = "The server does not answer.";
  try {
    const answer = await fetch(`/v1/timelines/${encodeURIComponent(id)}/page`, { headers });
    const data = await answer.json();
    if (answer.ok) return new Page({ ...data, live: true });
    problem = data.error.message;
  } catch (error) {
    if (!(error instanceof TypeError || error instanceof SyntaxError)) throw error;
  }
  $("notices").replaceChildren(make("p", "notice", plain(problem)));
}

const given = JSON.parse($("data").textContent);
if (given.live) openFromServer();
else new Page(given);
