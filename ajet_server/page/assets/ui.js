// Puts the page together: the view that the address names, drawn anew when the server has news.

import { ServerError, forgetToken, get, hasToken, setToken, takeToken } from "./api.js";
import { clearCharts } from "./charts.js";
import { compareView } from "./compare.js";
import { make, number, section, visible } from "./dom.js";
import { curvesView } from "./curves.js";
import { episodeView, episodesView, exampleView } from "./episodes.js";
import { overviewView } from "./overview.js";
import { serverView } from "./server.js";
import { stepView } from "./steps.js";
import { tasksView } from "./tasks.js";

const FIRST_SECONDS = 5;

const VIEWS = [
  ["", "Overview", overviewView],
  ["curves", "Curves", curvesView],
  ["episodes", "Episodes", episodesView],
  ["tasks", "Tasks", tasksView],
  ["compare", "Compare", compareView],
  ["server", "Server", serverView],
];
const OTHERS = { episode: episodeView, example: exampleView, step: stepView };

const $ = (id) => document.getElementById(id);

/**
 * What all views know. `overview` is the server's last answer to `/v1/overview`, `update` draws the
 * view anew with fresh data, its `leave` ends what the view began, and `draws` counts the views that
 * were begun.
 */
const app = { overview: null, update: null, draws: 0, go, refresh };

function go(path) {
  if (location.hash === `#/${path}`) draw();
  else location.hash = `#/${path}`;
}

function route() {
  takeToken();
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decodeURIComponent);
  return { name, id: rest.join("/"), query: new URLSearchParams(query) };
}

function showNav(name) {
  $("nav").replaceChildren(
    ...VIEWS.map(([path, title]) => make("a", { href: `#/${path}`, "aria-current": path === name ? "page" : null }, title)),
  );
}

async function draw() {
  const mine = ++app.draws;
  app.update?.leave?.();
  app.update = null;
  try {
    const { name, id, query } = route();
    const view = VIEWS.find(([path]) => path === name)?.[2] ?? (Object.hasOwn(OTHERS, name) ? OTHERS[name] : null);
    showNav(name);
    if (!hasToken()) return logIn("");
    if (!view) return show(section("This page has no such view", make("a", { href: "#/" }, "Overview")));
    const place = make("div", { class: `view ${name || "overview"}` });
    await load();
    if (mine !== app.draws) return;
    const update = await view(place, app, { id, query });
    if (mine !== app.draws) return update?.leave?.();
    app.update = update ?? null;
    show(place);
  } catch (error) {
    if (mine === app.draws) problem(error);
  }
}

function show(content) {
  const focused = document.activeElement?.id;
  $("content").replaceChildren(content);
  clearCharts();
  // A filter that was changed stays where the keyboard is.
  if (focused && focused !== "content") document.getElementById(focused)?.focus();
}

async function load() {
  const overview = await get("/v1/overview");
  app.overview = overview;
  const said = visible(overview.sentence);
  // Screen readers read it aloud when it is set.
  if ($("sentence").textContent !== said) $("sentence").textContent = said;
  $("sentence").className = `sentence ${overview.status.state.toLowerCase()}`;
  document.title = visible(`${overview.status.run_id ?? "agentjet"}: step ${number(overview.status.step)}`);
  $("fresh").textContent = `state as of ${new Date(overview.time * 1000).toLocaleTimeString("sv-SE")}`;
}

async function refresh() {
  if (document.hidden || !hasToken()) return;
  const mine = app.draws;
  try {
    await load();
    if (mine === app.draws) await app.update?.();
  } catch (error) {
    if (mine === app.draws) problem(error);
  }
}

function problem(error) {
  if (!(error instanceof ServerError || error instanceof URIError)) throw error;
  const message = error instanceof ServerError ? error.message : "This address is not one of this page.";
  if (error.status === 401 || error.status === 403) {
    forgetToken();
    logIn(message);
  } else if (error.status === 0 || error.status === 429 || error.status >= 500) {
    $("fresh").textContent = `${visible(message)} Trying again.`;
    app.update ??= draw;
  } else {
    show(section("This cannot be shown", make("p", { class: "bad", role: "alert" }, message)));
  }
}

function logIn(message) {
  $("sentence").textContent = "";
  const field = make("input", { id: "token", type: "password", autocomplete: "off", required: true, size: 50 });
  const form = make(
    "form",
    {
      class: "login",
      onsubmit: (event) => {
        event.preventDefault();
        if (setToken(field.value.trim())) draw();
        else logIn("This is not a token: it has characters that no token has.");
      },
    },
    make("h2", {}, "Log in"),
    message && make("p", { class: "bad", role: "alert" }, message),
    make("p", {}, "This page shows everything that agents sent, so it needs a token of the scope view:"),
    make("pre", {}, "ajet token create --scope view --name NAME"),
    make("label", { for: "token" }, "Token "),
    field,
    make("button", {}, "Open"),
    make("p", { class: "dim" }, "This tab keeps it until you close it."),
  );
  show(form);
  field.focus();
}

$("goto").addEventListener("submit", (event) => {
  event.preventDefault();
  go(`step/${Number($("goto-step").value)}`);
  $("goto-step").value = "";
});
addEventListener("keydown", (event) => {
  // Not the key's character: with Alt, it is another one on some keyboards.
  if (!event.altKey || event.ctrlKey || event.metaKey || event.code !== "KeyG") return;
  event.preventDefault();
  $("goto-step").focus();
});
// Where each entry of the tab's history was scrolled to, so that going back leads there.
const scrolled = new Map();
let entry = begun();
history.scrollRestoration = "manual";

/** The number of the present entry of the history; a new one gets a new number. */
function begun() {
  if (typeof history.state?.entry !== "number") history.replaceState({ entry: Date.now() + Math.random() }, "");
  return history.state.entry;
}

addEventListener("scroll", () => entry !== null && scrolled.set(entry, scrollY), { passive: true });
addEventListener("hashchange", async () => {
  const inForm = document.activeElement?.closest("form.filters, form.inline");
  // What scrolls until the new view is drawn is none of its positions.
  entry = null;
  await draw();
  entry = begun();
  const before = scrolled.get(entry);
  if (inForm && before === undefined) return;
  $("content").focus({ preventScroll: true });
  scrollTo(0, before ?? 0);
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("content").focus();
});
document.addEventListener("visibilitychange", refresh);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
async function again() {
  try {
    await refresh();
  } finally {
    // Browsers must not all ask at the same moment.
    setTimeout(again, (app.overview?.again_seconds ?? FIRST_SECONDS) * 1000 * (0.9 + 0.2 * Math.random()));
  }
}

setTimeout(again, FIRST_SECONDS * 1000);
draw();
