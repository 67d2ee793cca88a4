// Routes of a role, a part of the table at a time: the role filters, since it may have a quarter of a million.

import { NoAnswer, page, rowsOf, type Fields } from "../api";
import { h, replace, text } from "../dom";
import type { Screen } from "../main";
import { chosen as chosenSource, none, picker, problem } from "../parts";
import { address, go } from "../route";
import { state } from "../state";
import { Table, columnsOf, type Column } from "../table";

const ROLES = ["member", "attest", "gateway", "rs"] as const;
const MOST = 500;

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

export const routes: Screen = (into, parameters) => {
  const form = h("form", { class: "ask" });
  const result = h("section", { "aria-label": "Routes" });
  into.append(h("h1", {}, "Routes"), form, result);
  let [isDrawn, isOver] = [false, false];

  const load = async (name: string, role: string): Promise<void> => {
    const asked: Record<string, string> = role === "gateway" ? {} : { most: String(MOST) };
    if (role === "member") {
      for (const filter of ["prefix", "announcer", "origin", "community", "all"]) {
        const value = parameters.get(filter);
        if (value !== null && value !== "") asked[filter] = value;
      }
    }
    try {
      const value = await page(name, "routes", asked);
      if (isOver) return;
      const rows = rowsOf(value.routes);
      const columns: Column<Fields>[] = role === "member" ? MEMBER : (columnsOf(rows) as Column<Fields>[]);
      const withWhy = columns.map((column) =>
        column.title === "prefix" && (role === "member" || role === "attest")
          ? { ...column, look: (route: Fields) => h("a", { href: address("why", { source: name, what: text(route.prefix) }) }, text(route.prefix)) }
          : column,
      );
      const table = new Table<Fields>({
        name: `Routes of ${name}`,
        columns: withWhy,
        isBad: (route) => route.state === "refused" || route.verdict === "invalid",
      });
      replace(result, value.more === true && h("p", { class: "none" }, `The first ${rows.length}: ask for a prefix or a member to see others.`), table.element);
      table.rows = rows;
    } catch (error) {
      if (!isOver) replace(result, problem(error instanceof NoAnswer ? error.message : String(error)));
    }
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
    const filters =
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
    replace(form, picker(sources, chosen.name, (name) => go("routes", { source: name })), ...filters);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      const given = [...new FormData(form)].map(([name, value]) => [name, String(value).trim()] as const).filter(([, value]) => value !== "");
      go("routes", { ...Object.fromEntries(given), source: chosen.name });
    });
    void load(chosen.name, role);
  };
  draw();
  const unwatch = state.watch(draw);
  return () => {
    isOver = true;
    unwatch();
  };
};
