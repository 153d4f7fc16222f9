// Elements. Texts of agents and models are only ever set as text, never parsed as markup.

/** Creates an element. `attributes` may have `on...` listeners; children are elements or texts. */
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false).map(asNode));
  return element;
}

function asNode(child) {
  return child instanceof Node ? child : document.createTextNode(visible(String(child)));
}

// Control characters, and those that hide or reorder text.
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu;

/** A text in which nothing is invisible. */
export function visible(text) {
  return text.replace(HIDDEN, (char) => `\\u${char.codePointAt(0).toString(16).padStart(4, "0")}`);
}

// An episode by its id, or a task or a client by the word before it. Tasks are quoted as Python does it.
const NAMED = /\b[0-9a-f]{24}\b|(?<=\btask )'[^'\n]+'|(?<=\bof client )[^\s,:()]+/g;

/** A text in which the ids of episodes, tasks and clients are links. */
export function linked(text) {
  const parts = [];
  let at = 0;
  for (const found of text.matchAll(NAMED)) {
    const [name] = found;
    const path = name.startsWith("'")
      ? `episodes?task=${encodeURIComponent(name.slice(1, -1))}&outputs=1`
      : /^[0-9a-f]{24}$/.test(name) && !/\bof client $/.test(text.slice(0, found.index))
        ? `episode/${name}`
        : `episodes?client=${encodeURIComponent(name)}`;
    parts.push(text.slice(at, found.index), make("a", { href: `#/${path}` }, name));
    at = found.index + name.length;
  }
  return [...parts, text.slice(at)];
}

/** A number with at most four digits, as people read it. */
export function number(value) {
  if (value === null || value === undefined) return "-";
  // -0 + 0 is 0.
  if (Number.isInteger(value)) return (value + 0).toLocaleString("en-US");
  const size = Math.abs(value);
  return size >= 1e-4 && size < 1e6 ? String(Number(value.toPrecision(4))) : value.toExponential(2);
}

/** Seconds as "3 h 5 min". */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "-";
  if (seconds < 60) return `${number(Math.round(seconds * 10) / 10)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** Unix seconds as a local time. */
export function clock(seconds) {
  return seconds ? new Date(seconds * 1000).toLocaleString("sv-SE") : "-";
}

/** A table: columns are [title, cell of a row, whether it is a number]. */
export function table(caption, columns, rows) {
  return make(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    make(
      "table",
      {},
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, columns.map(([title, , right]) => make("th", { scope: "col", class: right && "right" }, title)))),
      make(
        "tbody",
        {},
        rows.map((row) => make("tr", {}, columns.map(([, cell, right]) => make("td", { class: right && "right" }, cell(row))))),
      ),
    ),
  );
}

/** The rows that a view leaves out before its first one. */
export function skipped(query, most) {
  return Math.min(Math.max(0, Math.trunc(Number(query.get("skip")) || 0)), most);
}

/** Which rows of how many a table has: "Tasks 1 to 200 of 3,000", or "3 tasks" if these are all. */
export function partOf(nouns, skip, rows, more, total) {
  if (!skip && !more) return rows.length === 1 ? `1 ${nouns.slice(0, -1)}` : `${number(rows.length)} ${nouns}`;
  return `${nouns[0].toUpperCase()}${nouns.slice(1)} ${number(skip + 1)} to ${number(skip + rows.length)} of ${total}`;
}

/** Links to the pages before and after the one that the query names. */
export function pages(view, query, skip, size, more) {
  const turn = (to, title) => {
    const chosen = new URLSearchParams(query);
    chosen.set("skip", to);
    return make("a", { href: `#/${view}?${chosen}` }, title);
  };
  return make("p", { class: "pages" }, skip > 0 && turn(Math.max(0, skip - size), "previous page"), " ", more && turn(skip + size, "next page"));
}

/** A section with a heading. */
export function section(title, ...children) {
  return make("section", {}, make("h2", {}, title), ...children);
}
