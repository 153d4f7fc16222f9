// What the colours mean: each mode gives a token one of the classes of the style sheet.

const SURPRISE = [0.01, 0.1, 0.3, 0.7, 1.5, 3, 5];
const DIFFERENCE = [1e-4, 1e-3, 1e-2, 0.1];
const ROLES = ["system", "user", "assistant", "tool"];

const bucket = (value, limits) => limits.filter((limit) => value >= limit).length;

/** A class from div-0 (very negative) by div-4 (nothing) to div-8. */
const diverging = (steps, negative) => `div-${negative ? 4 - steps : 4 + steps}`;

const MODES = [
  {
    name: "role",
    label: "Role",
    colour: (token) => `role-${ROLES.includes(token.role) ? token.role : token.role ? "other" : "none"}`,
    legend: () => [
      ...ROLES.map((role) => [`role-${role}`, role]),
      ["role-none", "template"],
      ["sampled", "sampled"],
    ],
  },
  {
    name: "logprob",
    label: "Logprob",
    colour: (token) => (token.by.logprob == null ? "" : `seq-${bucket(-token.by.logprob, SURPRISE)}`),
    legend: () => [
      ["seq-0", "0"],
      ...SURPRISE.map((limit, i) => [`seq-${i + 1}`, `\u2264 \u2212${limit}`]),
    ],
  },
  {
    name: "difference",
    label: "Trainer \u2212 engine",
    colour: (token) => {
      const value = token.by.difference;
      return value == null ? "" : diverging(bucket(Math.abs(value), DIFFERENCE), value < 0);
    },
    legend: () => [
      ...DIFFERENCE.map((limit, i) => [`div-${3 - i}`, `\u2264 \u2212${limit}`]).reverse(),
      ["div-4", "same"],
      ...DIFFERENCE.map((limit, i) => [`div-${5 + i}`, `\u2265 ${limit}`]),
    ],
  },
  {
    name: "advantage",
    label: "Advantage",
    colour: (token, episode) => {
      const value = token.by.advantage;
      if (value == null) return token.by.call ? "untrained" : "";
      if (value === 0) return "div-4";
      return diverging(Math.min(4, 1 + Math.floor((3.999 * Math.abs(value)) / episode.advantageScale)), value < 0);
    },
    legend: (episode) => [
      ["div-0", brief(-episode.advantageScale)],
      ["div-2", ""],
      ["div-4", "0"],
      ["div-6", ""],
      ["div-8", `+${brief(episode.advantageScale)}`],
      ["untrained", "not trained"],
    ],
  },
  {
    name: "policy",
    label: "Policy version",
    colour: (token, episode) =>
      token.by.policy == null ? "" : `cat-${episode.policyVersions.indexOf(token.by.policy) % 8}`,
    legend: (episode) => {
      const shown = episode.policyVersions.slice(0, 8).map((version, i) => [`cat-${i}`, `version ${version}`]);
      return episode.policyVersions.length > 8 ? [...shown, ["", "and more, in turn"]] : shown;
    },
  },
];

const NOBODY = { logprob: null, trainer: null, difference: null, policy: null, advantage: null, call: null };

/** What a colour is chosen by; of a token that several calls sampled, the first. */
function colourClass(mode, episode, node, offset, role) {
  const by = episode.nodes[node].by.length ? episode.samplings(node, offset)[0] : NOBODY;
  return mode.colour({ role, by }, episode);
}
