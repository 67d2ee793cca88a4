// Peers and paths of a gateway, and how long packets take, as it is measured.

import uPlot from "uplot";
import { NoAnswer, page, rowsOf, type Fields } from "../api";
import { h, moment, replace, text } from "../dom";
import type { Screen } from "../main";
import { beads, none, picker, problem } from "../parts";
import { address, go } from "../route";
import { state } from "../state";
import { Table } from "../table";
import { heading } from "../terms";

const INTERVAL = 2000;
/** Points of a line: half an hour. */
const MOST = 900;
const COLOURS = ["#2563eb", "#c2410c", "#15803d", "#7e22ce", "#be123c", "#0e7490", "#a16207", "#4b5563"];

const lineName = (path: Fields): string => `${text(path.to)}: ${pathName(path)}`;
const pathName = (path: Fields): string => (Array.isArray(path.nodes) ? path.nodes.map(text).join(" ") : "-");
const millis = (micros: unknown): number | null => (typeof micros === "number" ? micros / 1000 : null);

/** Lines at once. */
const MOST_LINES = 16;

/** Round trips of paths over time; a path that went keeps its line until the chart has no point of it. */
class Chart {
  readonly element = h("div", { class: "chart" });
  readonly #times: number[] = [];
  readonly #lines = new Map<string, (number | null)[]>();
  #plot: uPlot | null = null;

  add(at: number, values: ReadonlyMap<string, number | null>): void {
    for (const [name, line] of this.#lines) {
      if (!values.has(name) && line.every((value) => value === null)) {
        this.#lines.delete(name);
        this.end();
      }
    }
    for (const name of values.keys()) {
      if (!this.#lines.has(name) && this.#lines.size < MOST_LINES) {
        this.#lines.set(name, this.#times.map(() => null));
        this.end();
      }
    }
    this.#times.push(at);
    for (const [name, line] of this.#lines) line.push(values.get(name) ?? null);
    if (this.#times.length > MOST) {
      this.#times.shift();
      for (const line of this.#lines.values()) line.shift();
    }
    const data = [this.#times, ...this.#lines.values()] as uPlot.AlignedData;
    if (this.#plot !== null) {
      this.#plot.setData(data);
      return;
    }
    const colour = getComputedStyle(document.body).color;
    const axis = { stroke: colour, grid: { stroke: "#8884" }, ticks: { stroke: "#8884" } };
    const series = [...this.#lines.keys()].map((label, index) => ({
      label,
      stroke: COLOURS[index % COLOURS.length]!,
      value: (_: uPlot, value: number | null) => (value === null ? "-" : `${value.toFixed(2)} ms`),
    }));
    const options: uPlot.Options = {
      width: Math.max(280, Math.min(this.element.clientWidth || 800, 1100)),
      height: 220,
      axes: [axis, { ...axis, label: "round trip, ms" }],
      series: [{}, ...series],
    };
    this.#plot = new uPlot(options, data, this.element);
  }

  end(): void {
    this.#plot?.destroy();
    this.#plot = null;
  }
}

export const overlay: Screen = (into, parameters) => {
  const form = h("form", { class: "ask" });
  const said = h("div");
  const chart = new Chart();
  const paths = new Table<Fields>({
    name: "Paths",
    isBad: (path) => path.dead === true,
    columns: [
      { title: "to", value: (path) => path.to },
      {
        title: "path",
        value: pathName,
        look: (path) =>
          beads((Array.isArray(path.nodes) ? path.nodes : []).map((node, at, all) => ({ name: text(node), state: path.dead === true ? "broken" : at === 0 || at === all.length - 1 ? "end" : "proved" })), "nodes"),
      },
      { title: "used", value: (path) => path.used },
      { title: "round trip, ms", value: (path) => millis(path.round_trip_micros) },
      { title: "loss, ppm", value: (path) => path.loss_ppm },
      { title: "state", value: (path) => (path.dead === true ? "dead" : typeof path.refused === "string" ? path.refused : "usable") },
      { title: "avoided", value: (path) => path.avoided },
      { title: "pinned", value: (path) => path.pinned },
      { title: "consents until", value: (path) => (typeof path.proven_until === "number" ? moment(path.proven_until) : null) },
    ],
  });
  const peers = new Table<Fields>({
    name: "Peers",
    columns: [
      { title: "peer", value: (peer) => peer.node },
      { title: "admitted", value: (peer) => peer.admitted },
      { title: "sessions", value: (peer) => peer.sessions },
      { title: "flows", value: (peer) => peer.flows },
      { title: "sent", value: (peer) => peer.sent },
      { title: "received", value: (peer) => peer.received },
      { title: "round trip, ms", value: (peer) => millis(peer.round_trip_micros) },
      { title: "loss, ppm", value: (peer) => peer.loss_ppm },
    ],
  });
  const all = h("div", {}, heading("h2", "Round trips"), chart.element, heading("h2", "Paths"), paths.element, heading("h2", "Peers"), peers.element);
  into.append(heading("h1", "Overlay"), form, said, all);
  all.hidden = true;
  let [chosen, isOver, isLoading] = ["", false, false];

  const load = async (): Promise<void> => {
    if (chosen === "" || isLoading) return;
    isLoading = true;
    try {
      const [ofPaths, ofPeers] = await Promise.all([page(chosen, "paths"), page(chosen, "peers")]);
      if (isOver) return;
      const rows = rowsOf(ofPaths.paths);
      [all.hidden, paths.rows, peers.rows] = [false, rows, rowsOf(ofPeers.peers)];
      chart.add(Date.now() / 1000, new Map(rows.map((path) => [lineName(path), path.dead === true ? null : millis(path.round_trip_micros)])));
      replace(said);
    } catch (error) {
      if (!isOver) replace(said, problem(error instanceof NoAnswer ? error.message : String(error)));
    } finally {
      isLoading = false;
    }
  };

  const draw = (): void => {
    if (chosen !== "" || !state.isKnown) return;
    const sources = state.ofRoles(["gateway"]);
    if (sources.length === 0) {
      replace(said, none("Overlay", "gateway"));
      return;
    }
    const wanted = parameters.get("source");
    chosen = (sources.find((source) => source.name === wanted) ?? sources[0]!).name;
    replace(form, picker(sources, chosen, (name) => go("overlay", { source: name })), h("a", { href: address("map") }, "on the map"));
    void load();
  };
  draw();
  const unwatch = state.watch(draw);
  const timer = setInterval(() => void load(), INTERVAL);
  return () => {
    isOver = true;
    unwatch();
    clearInterval(timer);
    chart.end();
  };
};
