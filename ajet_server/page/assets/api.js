// Requests to the server that the page comes from.

const KEY = "ajet-token";
// A server that does not answer in this time is asked again. Stopping a run saves a checkpoint.
const READ_SECONDS = 60;
const CHANGE_SECONDS = 600;

/** An answer that is no success, with the server's sentence. */
export class ServerError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/** Takes the token of `#token=...` out of the address. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  history.replaceState(null, "", location.pathname);
  setToken(given);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

/** Keeps a token for this tab; false if it cannot be one. */
export function setToken(token) {
  const possible = /^[\x21-\x7e]+$/.test(token);
  if (possible) sessionStorage.setItem(KEY, token);
  return possible;
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}

/** Returns the JSON of `GET path`. */
export async function get(path, query = {}) {
  return request("GET", path, query);
}

/** Returns the JSON of `POST path`. */
export async function post(path, body = undefined) {
  return request("POST", path, {}, body);
}

/** Returns the JSON of `PUT path`. */
export async function put(path, body) {
  return request("PUT", path, {}, body);
}

/** Yields the JSON of each event of `GET path`, until the server or the signal ends it. */
export async function* events(path, signal) {
  const answer = await send(path, { signal });
  if (!answer.ok) throw await problemOf(answer);
  // Not `EventSource`, which cannot send a token.
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    // Lines with ":" are comments, which only keep the connection alive.
    for (const part of parts) if (part.startsWith("data: ")) yield JSON.parse(part.slice(6));
  }
}

async function request(method, path, query, body) {
  const filled = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const answer = await send(filled.length ? `${path}?${new URLSearchParams(filled)}` : path, {
    method,
    headers: body === undefined ? {} : { "content-type": "application/json" },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout((method === "GET" ? READ_SECONDS : CHANGE_SECONDS) * 1000),
  });
  if (!answer.ok) throw await problemOf(answer);
  const content = await answer.json().catch(() => null);
  if (content === null) throw new ServerError(0, "The server did not answer to the end.");
  return content;
}

async function send(path, { headers = {}, ...options }) {
  try {
    return await fetch(path, { ...options, headers: { ...headers, authorization: `Bearer ${sessionStorage.getItem(KEY)}` } });
  } catch {
    throw new ServerError(0, "The server does not answer.");
  }
}

async function problemOf(answer) {
  const content = await answer.json().catch(() => null);
  return new ServerError(answer.status, content?.error?.message ?? `The server answers ${answer.status}.`);
}
