"use strict";
// What the page knows: the episodes, and what each token of them is.

const GLYPHS = { "\n": "\u21b5\n", "\t": "\u21e5\t" };

/** Texts of token ids. Those that are parts of a character come as bytes. */
class Vocabulary {
  constructor(texts) {
    this.texts = new Map(Object.entries(texts).map(([id, text]) => [Number(id), text]));
    this.shown = new Map();
  }

  /** What a token says: a string, an array of bytes, or undefined. */
  get(id) {
    return this.texts.get(id);
  }

  /** {text, kind} to show for a token; whatever would hide or reorder text is spelled out. */
  show(id) {
    let shown = this.shown.get(id);
    if (shown === undefined) {
      shown = this._show(id);
      this.shown.set(id, shown);
    }
    return shown;
  }

  _show(id) {
    const text = this.texts.get(id);
    if (text === undefined) return { text: String(id), kind: "id" };
    if (Array.isArray(text)) {
      return { text: text.map((byte) => byte.toString(16).padStart(2, "0")).join(" "), kind: "bytes" };
    }
    if (text === "") return { text: "\u2205", kind: "special" };
    return { text: plain(text), kind: "text" };
  }

  /** The text of a run of tokens, bytes put together. */
  join(ids) {
    return this.joinWithStarts(ids).text;
  }

  /** The same, and where in it each token starts. */
  joinWithStarts(ids) {
    const starts = new Array(ids.length);
    const decoder = new TextDecoder("utf-8");
    let text = "";
    for (let i = 0; i < ids.length; i++) {
      const piece = this.texts.get(ids[i]);
      if (Array.isArray(piece)) {
        // The bytes of one character all start where it does.
        starts[i] = text.length;
        text += decoder.decode(new Uint8Array(piece), { stream: true });
      } else {
        text += decoder.decode();
        starts[i] = text.length;
        text += piece === undefined ? "" : piece;
      }
    }
    text += decoder.decode();
    return { text, starts };
  }
}

/** Text with control and formatting characters spelled out. */
function plain(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029]/gu, (char) => {
    const code = char.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
    return GLYPHS[char] || `\u27e8U+${code}\u27e9`;
  });
}

/** One episode: nodes with their children and depth, calls with one policy version for each token. */
class Episode {
  constructor(raw, number) {
    Object.assign(this, raw);
    this.number = number;
    for (const node of this.nodes) node.children = [];
    this.roots = [];
    this.nodes.forEach((node, i) => {
      node.start = node.parent < 0 ? 0 : this.nodes[node.parent].start + this.size(node.parent);
      (node.parent < 0 ? this.roots : this.nodes[node.parent].children).push(i);
    });
    this._below();
    for (const call of this.calls) {
      call.policyOf = call.versions.flatMap(([version, count]) => new Array(count).fill(version));
    }
    this.advantageScale = Math.max(1e-9, ...this.calls.map((call) => Math.abs(call.advantage || 0)));
    const versions = [...new Set(this.calls.flatMap((call) => call.versions.map((run) => run[0])))];
    this.policyVersions = versions.sort((a, b) => a - b);
    this.joined = new Map();
  }

  /** For each node, the first and the last index of the calls that end in it or below. */
  _below() {
    for (const node of this.nodes) node.below = [Infinity, -Infinity];
    const widen = (node, [first, last]) => {
      if (node < 0) return;
      const { below } = this.nodes[node];
      below[0] = Math.min(below[0], first);
      below[1] = Math.max(below[1], last);
    };
    for (const call of this.calls) widen(call.end, [call.index, call.index]);
    for (let i = this.nodes.length - 1; i >= 0; i--) widen(this.nodes[i].parent, this.nodes[i].below);
  }

  /** Tokens of a node, cut ones included. */
  size(node) {
    return this.nodes[node].ids.length + this.nodes[node].cut;
  }

  /** [role, name] of a token; the template's tokens have none. */
  role(node, offset) {
    const found = this.nodes[node].roles.find((span) => span[0] <= offset && offset < span[1]);
    return found ? [found[2], found[3]] : ["", ""];
  }

  /** What each call that sampled a token says about it. */
  samplings(node, offset) {
    return this.nodes[node].by.map(([number, start]) => {
      const call = this.calls[number];
      const logprob = call.logprobs[start + offset];
      const trainer = call.trainer.length ? call.trainer[start + offset] : null;
      const known = logprob != null && trainer != null;
      return {
        call,
        number,
        logprob,
        trainer,
        difference: known ? trainer - logprob : null,
        policy: call.policyOf[start + offset],
        advantage: call.advantage,
      };
    });
  }

  /** Text of a node and where in it each token starts. */
  text(node, vocabulary) {
    if (!this.joined.has(node)) this.joined.set(node, vocabulary.joinWithStarts(this.nodes[node].ids));
    return this.joined.get(node);
  }

  /** Nodes without a branch in between, from `node` on. */
  chain(node) {
    const found = [node];
    while (this.nodes[found.at(-1)].children.length === 1) found.push(this.nodes[found.at(-1)].children[0]);
    return found;
  }

  /** The first node of the chain that a node is in. */
  head(node) {
    for (;;) {
      const parent = this.nodes[node].parent;
      if (parent < 0 || this.nodes[parent].children.length > 1) return node;
      node = parent;
    }
  }

  /** The node in which a call's sampled tokens begin, and the offset; null if it has none. */
  firstSampled(number) {
    const node = this.nodes.findIndex((each) => each.by.some(([call, start]) => call === number && start === 0));
    return node < 0 ? null : { node, offset: 0 };
  }
}

const mean = (values) => {
  const known = values.filter((value) => value != null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

/** A number for people: a fixed number of digits, a true minus sign. */
function number(value, digits = 4, sign = false) {
  if (value == null) return "none";
  const small = value !== 0 && Math.abs(value) < 10 ** -digits;
  const text = small ? Math.abs(value).toExponential(1) : Math.abs(value).toFixed(digits);
  return (value < 0 ? "\u2212" : sign ? "+" : "") + text;
}

const grouped = (count) => count.toLocaleString("en-US").replaceAll(",", "\u202f");
const plural = (count, word) => `${grouped(count)} ${word}${count === 1 ? "" : "s"}`;

/** A reward or another short number as it is written. */
const brief = (value) => (value == null ? "" : String(Number(value.toPrecision(4))).replace("-", "\u2212"));

/** An element; text is never parsed as HTML anywhere in this page. */
function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function button(className, onClick, ...children) {
  const element = make("button", className, ...children);
  element.type = "button";
  element.addEventListener("click", onClick);
  return element;
}
