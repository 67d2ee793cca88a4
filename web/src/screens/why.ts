// Why a prefix or a name goes where it goes: what `wayleave why` says, as a picture.

import { NoAnswer, page, rowsOf, type Fields, type Json } from "../api";
import { command, h, moment, put, replace, text } from "../dom";
import type { Screen } from "../main";
import { beads, chosen as chosenSource, facts, none, picker, problem, type Bead } from "../parts";
import { address, go } from "../route";
import { state } from "../state";
import { heading, hint } from "../terms";

const ROLES = ["member", "attest", "gateway", "stamper"] as const;
/** Those that explain a name or an address, and no prefix. */
const BY_NAME: readonly string[] = ["gateway", "stamper"];

const list = rowsOf;
const words = (value: Json | undefined): string | null => (typeof value === "string" ? value : null);

function network(member: Json | undefined): string {
  const { name, asn } = (member ?? {}) as Fields;
  return name === undefined ? "-" : `${text(name)} (AS${text(asn)})`;
}

/** The hops of a route, with what is proved of each where attestation says so. */
function hopsOf(route: Fields): Bead[] {
  const hops = list(route.hops);
  if (hops.length > 0) {
    // Chains begin with their origin.
    return hops.reverse().map((hop) => ({
      name: `AS${text(hop.asn)}`,
      state: hop.broken === true ? "broken" : hop.proved === true ? "proved" : "plain",
      words: text(hop.words),
    }));
  }
  const path = Array.isArray(route.as_path) ? route.as_path : [];
  return path.map((asn) => ({ name: typeof asn === "number" ? `AS${asn}` : text(asn), state: "plain" }));
}

function outcome(route: Fields): HTMLElement {
  const said = text(route.outcome);
  const isUsed = /^(installed|valid|announced|passed)/.test(said);
  return h("p", { class: isUsed ? "outcome well" : "outcome" }, said);
}

function cure(of: Fields): HTMLElement | null {
  const said = words(of.cure);
  return said === null || said === "nothing" ? null : h("p", { class: "cure" }, h("b", {}, "To change it: "), said);
}

/** A route of another network. */
function received(route: Fields): HTMLElement {
  const from = route.announcer === undefined ? `from ${text(route.pair)}` : `announced by ${network(route.announcer)}`;
  return h(
    "article",
    { class: "card" },
    h("h3", {}, from),
    beads([{ name: "here", state: "end" }, ...hopsOf(route)], "AS path, nearest first"),
    outcome(route),
    route.rule !== undefined && h("p", {}, h("b", {}, "By: "), text(route.rule)),
    words(route.reason) !== null && h("p", {}, h("b", {}, "Because: "), text(route.reason)),
    (route.lack ?? null) !== null && h("p", {}, h("b", {}, "What is missing: "), text(route.lack)),
    (route.verdict ?? null) !== null && h("p", {}, hint("verdict"), ": ", text(route.verdict)),
    (route.class ?? null) !== null && h("p", {}, hint("class"), ": ", text(route.class)),
    cure(route),
  );
}

/** A route of one's own: who may have it, by which rule. */
function own(route: Fields): HTMLElement {
  const receivers = list(route.receivers).map((receiver) =>
    h("li", { class: receiver.may_have === true ? "may" : "may-not" }, h("b", {}, network(receiver)), receiver.may_have === true ? " may have it: " : " may not: ", text(receiver.why)),
  );
  const checks = list(route.checks).map((check) =>
    h("li", { class: check.passed === true ? "may" : "may-not" }, h("b", {}, text(check.check)), ": ", text(check.found)),
  );
  return h(
    "article",
    { class: "card" },
    heading("h3", "your own route"),
    beads([...hopsOf(route), { name: "the exchange", state: "end" }], "AS path, nearest first"),
    outcome(route),
    route.rule !== undefined && h("p", {}, h("b", {}, "By: "), text(route.rule)),
    receivers.length > 0 && h("div", {}, heading("h4", "Who may have it"), h("ul", { class: "marks" }, ...receivers)),
    checks.length > 0 && h("details", {}, h("summary", {}, "What was checked"), h("ul", { class: "marks" }, ...checks)),
    cure(route),
  );
}

function overlayPath(path: Json | undefined, title: string): HTMLElement | null {
  if (path === null || path === undefined) return null;
  const of = path as Fields;
  const nodes = Array.isArray(of.nodes) ? of.nodes : [];
  const hops: Bead[] = nodes.map((node, at) => ({
    name: text(node),
    state: of.dead === true ? "broken" : at === 0 || at === nodes.length - 1 ? "end" : "proved",
    words: at === 0 || at === nodes.length - 1 ? "end of the path" : "consented, and verifies each packet",
  }));
  const trip = typeof of.round_trip_micros === "number" ? `${(of.round_trip_micros / 1000).toFixed(1)} ms` : "-";
  return h(
    "article",
    { class: "card" },
    h("h3", {}, title),
    beads(hops, "nodes of the path"),
    facts({
      round_trip: trip,
      loss: typeof of.loss_ppm === "number" ? `${(of.loss_ppm / 10_000).toFixed(2)} %` : null,
      profile: of.profile,
      consents_until: typeof of.proven_until === "number" ? moment(of.proven_until) : null,
      packet_size: of.room,
    }),
  );
}

function answer(role: string, value: Fields): Node[] {
  if (role === "gateway") {
    const rest = { policy: value.policy, peer: value.node, pinned: value.pinned, avoided: value.avoided, unresolved: value.unresolved };
    const parts = [h("p", { class: "summary" }, text(value.why)), overlayPath(value.active, "active path"), overlayPath(value.spare, "spare path"), facts(rest)];
    return parts.filter((part) => part !== null);
  }
  const routes = list(value.routes);
  const mine = list(value.own);
  if (role === "member" || role === "attest") {
    const problems = list(value.problems).map((one) => problem(text(one)));
    return [h("p", { class: "summary" }, text(value.summary)), ...problems, ...mine.map(own), ...routes.map(received)];
  }
  return [facts(value)];
}

export const why: Screen = (into, parameters) => {
  const what = parameters.get("what") ?? "";
  const result = h("section", { "aria-live": "polite", "aria-label": "Answer" });
  const form = h("form", { class: "ask" });
  into.append(heading("h1", "Why"), form, result);
  let isDrawn = false;
  let isOver = false;

  const ask = async (name: string): Promise<void> => {
    const source = state.source(name);
    const role = source?.overview?.role ?? "";
    const parameter = BY_NAME.includes(role) ? "name" : "prefix";
    try {
      const value = await page(name, "why", { [parameter]: what });
      // Who may have each route of one's own stands on another page.
      const owned = role === "member" && list(value.own).length > 0 ? list((await page(name, "exports", { prefix: what })).exports) : [];
      if (isOver) return;
      replace(result, h("h2", {}, what), ...answer(role, owned.length > 0 ? { ...value, own: owned } : value));
      put(
        result,
        h("details", {}, h("summary", {}, "The whole answer"), h("pre", { tabindex: "0" }, JSON.stringify(value, null, 2))),
        // Names come from strangers: what a shell would take for more than a word is not offered.
        ...(/^[0-9A-Za-z.:/_-]+$/.test(what) ? [heading("h3", "On a terminal"), command(`wayleave why ${what} --url ${source?.at ?? ""}`)] : []),
      );
    } catch (error) {
      if (!isOver) replace(result, problem(error instanceof NoAnswer ? error.message : String(error)));
    }
  };

  const draw = (): void => {
    if (isDrawn || !state.isKnown) return;
    const sources = state.ofRoles(ROLES);
    if (sources.length === 0) {
      replace(result, none("Why", "member's proxy, attesting proxy, gateway or stamper"));
      return;
    }
    const of = chosenSource(sources, parameters.get("source"), state.sources);
    if (of === null) return;
    if (typeof of === "string") {
      replace(result, problem(of));
      return;
    }
    isDrawn = true;
    let chosen = of.name;
    const input = h("input", { type: "text", required: true, id: "what", autocomplete: "off", spellcheck: "false", placeholder: "203.0.113.0/24 or a name" });
    input.value = what;
    replace(
      form,
      picker(sources, chosen, (name) => {
        chosen = name;
        if (input.value !== "") go("why", { source: chosen, what: input.value.trim() });
      }),
      h("label", { for: "what" }, "Prefix or name ", input),
      h("button", { type: "submit" }, "Ask"),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      go("why", { source: chosen, what: input.value.trim() });
    });
    if (what !== "") void ask(chosen);
    else replace(result, h("p", { class: "none" }, "Ask for a prefix, or for a name or address at a gateway; or pick one among the ", h("a", { href: address("routes") }, "routes"), "."));
  };
  draw();
  const unwatch = state.watch(draw);
  return () => {
    isOver = true;
    unwatch();
  };
};
