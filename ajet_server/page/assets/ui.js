// Puts the page together: the view that the address names, drawn anew when the server has news.

import { ServerError, forgetToken, get, hasToken, setToken } from "./api.js";
import { make, number, section } from "./dom.js";
import { curvesView } from "./curves.js";
import { episodeView, episodesView } from "./episodes.js";
import { overviewView } from "./overview.js";
import { serverView } from "./server.js";
import { stepView } from "./steps.js";

const POLL_SECONDS = 5;

const VIEWS = [
  ["", "Overview", overviewView],
  ["curves", "Curves", curvesView],
  ["episodes", "Episodes", episodesView],
  ["server", "Server", serverView],
];
const OTHERS = { episode: episodeView, step: stepView };

const $ = (id) => document.getElementById(id);

/** What all views know. `overview` is the server's last answer to `/v1/overview`. */
const app = { overview: null, drawn: null, timer: null, go: (path) => (location.hash = `#/${path}`), refresh };

function route() {
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
  const { name, id, query } = route();
  const view = VIEWS.find(([path]) => path === name)?.[2] ?? OTHERS[name];
  showNav(name);
  if (!hasToken()) return logIn("");
  if (!view) return $("content").replaceChildren(section("This page has no such view", make("a", { href: "#/" }, "Overview")));
  const place = make("div", { class: `view ${name || "overview"}` });
  // A view returns a function that draws it anew with fresh data, or nothing.
  app.drawn = null;
  try {
    await load();
    const update = await view(place, app, { id, query });
    app.drawn = update ?? null;
    $("content").replaceChildren(place);
  } catch (error) {
    problem(error);
  }
}

async function load() {
  app.overview = await get("/v1/overview");
  $("sentence").textContent = app.overview.sentence;
  $("sentence").className = `sentence ${app.overview.status.state.toLowerCase()}`;
  document.title = `${app.overview.status.run_id ?? "agentjet"}: step ${number(app.overview.status.step)}`;
  $("fresh").textContent = `as of ${new Date(app.overview.time * 1000).toLocaleTimeString("sv-SE")}`;
}

async function refresh() {
  if (document.hidden || !hasToken()) return;
  try {
    await load();
    await app.drawn?.();
  } catch (error) {
    problem(error);
  }
}

function problem(error) {
  if (error instanceof ServerError && (error.status === 401 || error.status === 403)) {
    forgetToken();
    logIn(error.message);
  } else if (error instanceof ServerError) {
    $("fresh").textContent = `${error.message} Trying again.`;
  } else {
    throw error;
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
        setToken(field.value.trim());
        draw();
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
  $("content").replaceChildren(form);
  field.focus();
}

addEventListener("hashchange", async () => {
  await draw();
  $("content").focus({ preventScroll: true });
  scrollTo(0, 0);
});
document.addEventListener("visibilitychange", refresh);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// Browsers must not all ask at the same moment.
setInterval(refresh, POLL_SECONDS * 1000 * (0.9 + 0.2 * Math.random()));
draw();
