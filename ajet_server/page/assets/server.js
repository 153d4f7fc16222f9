// The server: configuration, counters, checks, tokens.

import { get } from "./api.js";
import { clock, make, number, section, table } from "./dom.js";

export async function serverView(place, app) {
  const update = async () => {
    const { status, config } = app.overview;
    place.replaceChildren(
      section("Training checks", Object.keys(status.checks).length ? table("Results of the last step", [["check", ([name]) => name.replaceAll("_", " ")], ["result", ([, value]) => value]], Object.entries(status.checks)) : make("p", { class: "dim" }, "No run is active.")),
      section("Totals", table("Counters of the run", [["counter", ([name]) => name], ["value", ([, value]) => number(value), true]], Object.entries(status.counters))),
      await tokens(app.overview.scope),
      section("Settings that are not the defaults", config ? changes(app.overview.changed) : make("p", { class: "dim" }, "No run is configured.")),
      section("Configuration", config ? make("pre", {}, JSON.stringify(config, null, 2)) : make("p", { class: "dim" }, "No run is configured.")),
    );
  };
  await update();
  return null;
}

/** The settings of nested objects, by the dotted names that `ajet` takes. */
function flat(settings, prefix = "") {
  return Object.entries(settings).flatMap(([name, value]) =>
    value !== null && typeof value === "object" && !Array.isArray(value) && Object.keys(value).length
      ? flat(value, `${prefix}${name}.`)
      : [[`${prefix}${name}`, typeof value === "string" ? value : JSON.stringify(value)]],
  );
}

function changes(settings) {
  return table("Set by the run", [["setting", ([name]) => name], ["value", ([, value]) => value]], flat(settings));
}

async function tokens(scope) {
  if (scope !== "control") return section("Tokens", make("p", { class: "dim" }, "Only a control token may list them."));
  const { tokens: rows } = await get("/v1/tokens");
  return section(
    "Tokens",
    table(
      "Those that may use this server",
      [
        ["name", (row) => row.name],
        ["id", (row) => row.token_id],
        ["scope", (row) => row.scope],
        ["expires", (row) => (row.expires_at ? clock(row.expires_at) : "never")],
        ["revoked", (row) => (row.revoked_at ? clock(row.revoked_at) : "-")],
        ["last used", (row) => clock(row.last_used_at)],
      ],
      rows,
    ),
  );
}
