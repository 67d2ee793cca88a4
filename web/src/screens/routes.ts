// Routes of a role, a part of the table at a time: the role filters, since it may have a quarter of a million.

import { NoAnswer, page, rowsOf, type Fields } from "../api";
import { h, replace, text } from "../dom";
import type { Screen } from "../main";
import { chosen as chosenSource, none, picker, problem } from "../parts";
import { Pager, type Place } from "../pager";
import { address, go, keep } from "../route";
import { state } from "../state";
import { Table, columnsOf, type Column } from "../table";
import { heading } from "../terms";

const ROLES = ["member", "attest", "gateway", "rs"] as const;
/** Rows of a role that says only the first ones. */
const MOST = 500;
/** Rows of a page of a member's proxy. */
const PAGE = 100;
const FILTERS = ["prefix", "announcer", "origin", "community", "all"];

const MEMBER: Column<Fields>[] = [
  { title: "prefix", value: (route) => route.prefix },
  { title: "announcer", value: (route) => ((route.announcer ?? {}) as Fields).name },
  { title: "AS path", value: (route) => (Array.isArray(route.as_path) ? route.as_path.map(text).join(" ") : null) },
  { title: "next hop", value: (route) => route.next_hop },
  { title: "state", value: (route) => route.state },
  { title: "reason", value: (route) => route.reason },
  { title: "verdict", value: (route) => route.verdict },
  { title: "age, s", value: (route) => route.age_secs },
  {
    title: "communities",
    value: (route) => [route.communities, route.large_communities, route.extended_communities].flat().filter((one) => one !== null && one !== undefined),
  },
];

/** Which rows of how many are shown. Of those that match a filter the proxy does not know how many there are, before it has read them. */
function said(value: Fields, count: number, at: Place, isFiltered: boolean): string {
  if (count === 0) return at.after === "" ? "No rows" : "No rows behind this place";
  const last = at.row + count - 1;
  const installed = typeof value.installed === "number" ? value.installed : null;
  const rows = `Rows ${at.row} to ${last}`;
  if (value.more !== true) return `${rows} of ${last}`;
  if (installed === null) return rows;
  return isFiltered ? `${rows} that match; the router is to have routes to ${installed} prefixes` : `${rows} of ${Math.max(installed, last)}`;
}

export const routes: Screen = (into, parameters) => {
  const form = h("form", { class: "ask" });
  const result = h("section", { "aria-label": "Routes" });
  into.append(heading("h1", "Routes"), form, result);
  let [isDrawn, isOver, isLoading] = [false, false, false];

  const tableOf = (name: string, role: string, rows: readonly Fields[]): Table<Fields> => {
    const ofPair: Column<Fields>[] = rows.some((route) => route.pair !== undefined) ? [{ title: "pair", value: (route) => route.pair }] : [];
    const columns: Column<Fields>[] = role === "member" ? [...MEMBER, ...ofPair] : (columnsOf(rows) as Column<Fields>[]);
    const withWhy = columns.map((column) =>
      column.title === "prefix" && (role === "member" || role === "attest")
        ? { ...column, look: (route: Fields) => h("a", { href: address("why", { source: name, what: text(route.prefix) }) }, text(route.prefix)) }
        : column,
    );
    return new Table<Fields>({ name: `Routes of ${name}`, columns: withWhy, isBad: (route) => route.state === "refused" || route.verdict === "invalid" });
  };

  /** The filters of the address that it has. */
  const filters = (): Record<string, string> => {
    const given = [...FILTERS, "pair"].map((name) => [name, parameters.get(name) ?? ""] as const);
    return Object.fromEntries(given.filter(([, value]) => value !== ""));
  };

  const load = async (name: string, role: string): Promise<void> => {
    try {
      const value = await page(name, "routes", role === "gateway" ? {} : { most: String(MOST) });
      if (isOver) return;
      const rows = rowsOf(value.routes);
      const table = tableOf(name, role, rows);
      replace(result, value.more === true && h("p", { class: "none" }, `The first ${rows.length}.`), table.element);
      table.rows = rows;
    } catch (error) {
      if (!isOver) replace(result, problem(error instanceof NoAnswer ? error.message : String(error)));
    }
  };

  /** Shows a page of a member's table at a time: the table stays in its place, and so does the focus. */
  const paged = (name: string): void => {
    const [status, place] = [h("div"), h("div")];
    let table: Table<Fields> | null = null;
    const show = async (at: Place): Promise<boolean> => {
      if (isLoading) return false;
      isLoading = true;
      try {
        const behind: Record<string, string> = at.after === "" ? {} : { after: at.after };
        const value = await page(name, "routes", { ...filters(), ...behind, most: String(PAGE) });
        if (isOver) return false;
        const rows = rowsOf(value.routes);
        if (table === null) {
          table = tableOf(name, "member", rows);
          replace(place, table.element);
        }
        table.rows = rows;
        const next = typeof value.next === "string" ? value.next : null;
        pager.shown(at, rows.length, next, said(value, rows.length, at, Object.keys(filters()).some((filter) => filter !== "pair")));
        replace(status, next === null && value.more === true && choiceOfPair(name, rows));
        keep(at.after === "" ? { after: "", row: "" } : { after: at.after, row: String(at.row) });
        return true;
      } catch (error) {
        if (!isOver) replace(status, problem(error instanceof NoAnswer ? error.message : String(error)));
        return false;
      } finally {
        isLoading = false;
      }
    };
    const pager = new Pager(show);
    replace(result, pager.element, status, place);
    const row = Number(parameters.get("row"));
    const after = parameters.get("after") ?? "";
    void show({ after, row: after !== "" && Number.isSafeInteger(row) && row > 0 ? row : 1 });
  };

  /** A proxy with several pairs has a table of each, and pages of one. */
  const choiceOfPair = (name: string, rows: readonly Fields[]): HTMLElement => {
    const pairs = [...new Set(rows.map((route) => text(route.pair)))].filter((pair) => pair !== "-");
    const links = pairs.flatMap((pair) => [" ", h("a", { href: address("routes", { ...filters(), source: name, pair }) }, pair)]);
    return h("p", { class: "none" }, `The first ${rows.length}: ask for a prefix or a member to see others`, pairs.length > 0 && ", or page by page those of the pair", ...links, ".");
  };

  const draw = (): void => {
    if (isDrawn || !state.isKnown) return;
    const sources = state.ofRoles(ROLES);
    if (sources.length === 0) {
      replace(result, none("Routes", "member's proxy, attesting proxy, gateway or party"));
      return;
    }
    const chosen = chosenSource(sources, parameters.get("source"), state.sources);
    if (chosen === null) return;
    if (typeof chosen === "string") {
      replace(result, problem(chosen));
      return;
    }
    isDrawn = true;
    const role = chosen.overview?.role ?? "";
    const field = (name: string, label: string, placeholder: string): HTMLElement => {
      const input = h("input", { type: "text", id: `f-${name}`, name, placeholder, autocomplete: "off", spellcheck: "false" });
      input.value = parameters.get(name) ?? "";
      return h("label", { for: `f-${name}` }, `${label} `, input);
    };
    const all = h("input", { type: "checkbox", id: "f-all", name: "all", value: "true" });
    all.checked = parameters.get("all") !== null;
    const fields =
      role === "member"
        ? [
            field("prefix", "Prefix or address", "203.0.113.0/24"),
            field("announcer", "Announcer", "alpha or AS64497"),
            field("origin", "Origin", "64510"),
            field("community", "Community", "64496:1"),
            h("label", { for: "f-all" }, all, " also those that are not installed"),
            h("button", { type: "submit" }, "Show"),
          ]
        : [];
    replace(form, picker(sources, chosen.name, (name) => go("routes", { source: name })), ...fields);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = [...new FormData(form)].map(([name, value]) => [name, String(value).trim()] as const).filter(([, value]) => value !== "");
      const pair = parameters.get("pair");
      go("routes", { ...Object.fromEntries(given), ...(pair === null ? {} : { pair }), source: chosen.name });
    });
    if (role === "member") paged(chosen.name);
    else void load(chosen.name, role);
  };
  draw();
  const unwatch = state.watch(draw);
  return () => {
    isOver = true;
    unwatch();
  };
};
