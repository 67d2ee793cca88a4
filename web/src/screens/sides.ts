// Two sides of one route, in a laboratory alone: what party 1 and party 2 hold of it, and what its announcer and a receiver know.

import { NoAnswer, page, rowsOf, type Fields } from "../api";
import { h, put, replace, text } from "../dom";
import type { Screen } from "../main";
import { problem } from "../parts";
import { address, go } from "../route";
import { state } from "../state";
import { heading } from "../terms";

const INTERVAL = 2000;
const BITS_A_ROW = 64;
const CELL = 6;

const rows = rowsOf;
/** Shares that a party's page has of a route. */
const MOST_SHARES = 8;
const texts = (value: unknown): string[] => (Array.isArray(value) ? value.map(text) : []);

/** The bits of a share as squares: dark for 1. */
function bits(hex: string, label: string): SVGSVGElement {
  const space = "http://www.w3.org/2000/svg";
  const all = [...hex].flatMap((digit) => [...parseInt(digit, 16).toString(2).padStart(4, "0")]);
  const svg = document.createElementNS(space, "svg");
  svg.setAttribute("viewBox", `0 0 ${BITS_A_ROW * CELL} ${Math.ceil(all.length / BITS_A_ROW) * CELL}`);
  svg.setAttribute("class", "bits");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label);
  const dark = all.flatMap((bit, at) => (bit === "1" ? [`M${(at % BITS_A_ROW) * CELL} ${Math.floor(at / BITS_A_ROW) * CELL}h${CELL - 1}v${CELL - 1}h-${CELL - 1}z`] : []));
  const path = document.createElementNS(space, "path");
  path.setAttribute("d", dark.join(""));
  svg.append(path);
  return svg;
}

/** How many of the bits are 1: of shares that say nothing, about a half. */
function ones(shares: readonly string[]): string {
  const all = shares.join("");
  let count = 0;
  for (const digit of all) count += [...parseInt(digit, 16).toString(2)].filter((bit) => bit === "1").length;
  return all === "" ? "-" : `${((100 * count) / (4 * all.length)).toFixed(1)} % of ${4 * all.length} bits are 1`;
}

interface Party {
  source: string;
  /** Whether announcers multiply policies themselves: then there is a share for each slot, else other shares. */
  isDirect: boolean;
  number: string;
  routes: Fields[];
  names: Map<string, string>;
}

async function party(source: string, number: string): Promise<Party> {
  const [ofRoutes, ofMembers, status] = await Promise.all([page(source, "routes", { most: "1000" }), page(source, "members"), page(source, "status")]);
  const names = new Map(rows(ofMembers.members).map((member) => [text(member.slot), text(member.name)]));
  return { source, isDirect: status.export === "direct", number, routes: rows(ofRoutes.routes), names };
}

function side(of: Party, prefix: string): HTMLElement {
  const route = of.routes.find((one) => texts(one.prefixes).includes(prefix));
  if (route === undefined) return h("article", { class: "card" }, h("h2", {}, `Party ${of.number}`), h("p", { class: "none" }, "It holds nothing of this prefix."));
  const shares = texts(route.policy_share);
  const nameOf = (at: number): string => (of.isDirect ? (of.names.get(String(at)) ?? `slot ${at}`) : `part ${at + 1}`);
  const strips = shares.flatMap((share, at) => [h("dt", {}, nameOf(at)), h("dd", {}, bits(share, `share of ${nameOf(at)}: ${share}`))]);
  const said = shares.length < MOST_SHARES ? "" : `, of which these are the first ${MOST_SHARES}`;
  const blob = of.number === "1" ? `${text(route.blob_bytes)} octets that it cannot open: ${text(route.blob)}...` : `only a hash of what party 1 holds: ${text(route.blob)}...`;
  return h(
    "article",
    { class: "card" },
    h("h2", {}, `Party ${of.number} holds`),
    h("p", {}, h("b", {}, "Prefix, announcer: "), `${prefix}, ${of.names.get(text(route.slot)) ?? text(route.slot)}`),
    h("p", {}, h("b", {}, "Route: "), blob),
    h("p", {}, h("b", {}, "Who may have it: "), shares.length === 0 ? "shares are not shown ([status] shares)" : (of.isDirect ? "a share for each slot" : "shares of the policy") + said),
    h("dl", { class: "strips" }, ...strips),
    h("p", { class: "none" }, ones(shares)),
  );
}

export const sides: Screen = (into, parameters) => {
  const form = h("form", { class: "ask" });
  const result = h("section", { "aria-label": "Two sides" });
  into.append(
    heading("h1", "Two sides"),
    h("p", { class: "none" }, "Neither party learns to whom a route may go: each share by itself is random. Only a laboratory shows both, since whoever has both has the policy."),
    form,
    result,
  );
  let isOver = false;
  let drawn = "";

  const load = async (): Promise<void> => {
    const parties = state.ofRoles(["rs"]).map((source) => ({ source: source.name, number: /^party (\d)/.exec(source.overview?.title ?? "")?.[1] ?? "?" }));
    if (parties.length < 2) {
      drawn = "";
      if (state.isKnown) replace(result, h("p", { class: "none" }, "Two sides: not both parties of an exchange answer."));
      return;
    }
    try {
      const both = await Promise.all(parties.map(({ source, number }) => party(source, number)));
      both.sort((a, b) => a.number.localeCompare(b.number));
      const [first] = both;
      const prefixes = [...new Set((first?.routes ?? []).flatMap((route) => texts(route.prefixes)))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const prefix = parameters.get("prefix") ?? prefixes[0] ?? "";
      const announcer = first?.names.get(text(first.routes.find((one) => texts(one.prefixes).includes(prefix))?.slot)) ?? "";
      // What only the announcer's own proxy knows.
      const known = announcer !== "" && state.source(announcer)?.absent === null ? await page(announcer, "exports", { prefix }).catch(() => null) : null;
      if (isOver) return;
      const now = JSON.stringify([both.map(({ routes }) => routes), prefixes, prefix, known]);
      if (now === drawn) return;
      drawn = now;
      const select = h("select", { id: "prefix" }, ...prefixes.map((one) => h("option", { value: one, selected: one === prefix }, one)));
      select.addEventListener("change", () => go("sides", { prefix: select.value }));
      replace(form, h("label", { for: "prefix" }, "Route ", select));
      const columns = h("div", { class: "three" }, ...both.map((of) => side(of, prefix)));
      const receivers = rows(rows(known?.exports)[0]?.receivers).map((one) =>
        h("li", { class: one.may_have === true ? "may" : "may-not" }, h("b", {}, text(one.name)), one.may_have === true ? " may have it: " : " may not: ", text(one.why)),
      );
      put(
        columns,
        h(
          "article",
          { class: "card" },
          h("h2", {}, announcer === "" ? "Its announcer knows" : `${announcer} knows`),
          receivers.length === 0 ? h("p", { class: "none" }, "Its proxy is no source of this console, or does not answer.") : h("ul", { class: "marks" }, ...receivers),
          announcer !== "" && h("p", {}, h("a", { href: address("why", { source: announcer, what: prefix }) }, "why")),
        ),
      );
      replace(result, columns);
    } catch (error) {
      drawn = "";
      if (!isOver) replace(result, problem(error instanceof NoAnswer ? error.message : String(error)));
    }
  };
  void load();
  let known = state.isKnown;
  const unwatch = state.watch(() => {
    if (known === state.isKnown) return;
    known = state.isKnown;
    void load();
  });
  const timer = setInterval(() => void load(), INTERVAL);
  return () => {
    isOver = true;
    unwatch();
    clearInterval(timer);
  };
};
