// Who pays for what: delegations and usage at key servers, what routers count, what hosts stamp.

import { NoAnswer, page, rowsOf } from "../api";
import { h, replace } from "../dom";
import type { Screen } from "../main";
import { none, problem, sourceLink } from "../parts";
import { state } from "../state";
import { Table, columnsOf } from "../table";
import { heading, hint } from "../terms";

const PAGES: Record<string, { page: string; rows: string; title: string }> = {
  key: { page: "usage", rows: "usage", title: "Usage" },
  router: { page: "accounts", rows: "accounts", title: "Accounts" },
  stamper: { page: "stamping", rows: "stamping", title: "Stamping" },
};
const INTERVAL = 5000;

export const capabilities: Screen = (into) => {
  const places = h("div");
  into.append(heading("h1", "Capabilities"), places);
  let isOver = false;
  const tables = new Map<string, { place: HTMLElement; table?: Table<Record<string, unknown>>; isLoading?: boolean }>();

  const load = async (name: string, role: string): Promise<void> => {
    const of = PAGES[role]!;
    const known = tables.get(name);
    if (known === undefined || known.isLoading === true) return;
    known.isLoading = true;
    try {
      const value = await page(name, of.page);
      if (isOver) return;
      const rows = rowsOf(value[of.rows]);
      if (rows.length === 0) {
        replace(known.place, h("p", { class: "none" }, "none yet"));
        delete known.table;
        return;
      }
      if (known.table === undefined) {
        known.table = new Table({ name: `${of.title} of ${name}`, columns: columnsOf(rows) });
        replace(known.place, known.table.element);
      }
      known.table.rows = rows;
      if (value.next !== undefined && value.next !== null) {
        replace(known.place, h("p", { class: "none" }, `The first ${rows.length}.`), known.table.element);
      }
    } catch (error) {
      delete known.table;
      const words = error instanceof NoAnswer ? error.message : String(error);
      if (!isOver) replace(known.place, /does not show/.test(words) ? h("p", { class: "none" }, "This router has no accounts.") : problem(words));
    } finally {
      known.isLoading = false;
    }
  };

  const draw = (): void => {
    const sources = state.ofRoles(Object.keys(PAGES));
    if (sources.length === 0) {
      if (state.isKnown) replace(places, none("Capabilities", "key server, router or stamper"));
      return;
    }
    for (const { name, overview } of sources) {
      const role = overview?.role ?? "";
      if (tables.has(name)) continue;
      const place = h("div", {}, h("p", { class: "none" }, "Loading"));
      if (tables.size === 0) replace(places);
      tables.set(name, { place });
      places.append(h("section", {}, h("h2", {}, hint(PAGES[role]!.title), ": ", sourceLink(name)), place));
      void load(name, role);
    }
  };
  draw();
  const unwatch = state.watch(draw);
  const timer = setInterval(() => {
    for (const name of tables.keys()) void load(name, state.source(name)?.overview?.role ?? "");
  }, INTERVAL);
  return () => {
    isOver = true;
    unwatch();
    clearInterval(timer);
  };
};
