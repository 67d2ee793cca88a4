// Who is linked with whom: parties, members and routers of an exchange, nodes and links of an overlay. The table has the same.

import cytoscape from "cytoscape";
import { page, rowsOf, type Fields } from "../api";
import { h, replace, text } from "../dom";
import type { Screen } from "../main";
import { keep } from "../route";
import { state } from "../state";
import { Table } from "../table";
import { heading } from "../terms";

const INTERVAL = 3000;

interface Link {
  from: string;
  to: string;
  kind: string;
  state: string;
  well: boolean;
  roundTrip: number | null;
  loss: number | null;
}

interface Path {
  name: string;
  nodes: string[];
}

interface Graph {
  /** Nodes by name, with what they are. */
  nodes: Map<string, string>;
  links: Link[];
  paths: Path[];
}

const rows = rowsOf;

/** What the sources' pages say of their links. */
async function read(): Promise<Graph> {
  const graph: Graph = { nodes: new Map(), links: [], paths: [] };
  const add = (name: string, kind: string): void => {
    if (!graph.nodes.has(name) || graph.nodes.get(name) === "other") graph.nodes.set(name, kind);
  };
  const link = (from: string, to: string, kind: string, state: string, well: boolean, of: Fields = {}): void => {
    const is = (one: Link): boolean => one.kind === kind && ((one.from === from && one.to === to) || (one.from === to && one.to === from));
    const roundTrip = typeof of.round_trip_micros === "number" ? of.round_trip_micros / 1000 : null;
    const loss = typeof of.loss_ppm === "number" ? of.loss_ppm : null;
    const known = graph.links.find(is);
    if (known === undefined) graph.links.push({ from, to, kind, state, well, roundTrip, loss });
    else if (known.well && !well) [known.state, known.well] = [state, well];
  };
  const one = async (name: string, role: string): Promise<void> => {
    if (role === "member" || role === "rs") {
      const overview = state.source(name)?.overview;
      const party = /^party (\d)/.exec(overview?.title ?? "")?.[1];
      const own = role === "rs" && party !== undefined ? `party ${party}` : name;
      add(own, role === "rs" ? "party" : "member");
      for (const { cells, well } of overview?.rows ?? []) {
        const peer = cells[0] ?? "-";
        const other = peer === "the peer party" ? `party ${party === "1" ? "2" : "1"}` : peer === "your router" ? `router of ${name}` : peer;
        add(other, other.startsWith("party ") ? "party" : other.startsWith("router of ") ? "router" : "other");
        link(own, other, role === "rs" || other.startsWith("party ") ? "exchange" : "BGP", cells[role === "rs" ? 2 : 1] ?? "-", well);
      }
    } else if (role === "attest") {
      add(name, "attesting");
      for (const { cells, well } of state.source(name)?.overview?.rows ?? []) {
        const peer = cells[0] ?? "-";
        add(peer, "other");
        link(name, peer, "attested BGP", cells[2] ?? "-", well);
      }
    } else if (role === "gateway" || role === "router") {
      const links = await page(name, "links").catch(() => ({}) as Fields);
      const own = name;
      const all = rows(links.links);
      if (all.length > 0) add(own, role === "gateway" ? "gateway" : "node");
      for (const of of all) {
        const other = text(of.node);
        add(other, "other");
        link(own, other, "link", text(of.state), of.state === "up", of);
      }
      if (role === "gateway") {
        const paths = await page(name, "paths").catch(() => ({}) as Fields);
        for (const path of rows(paths.paths)) {
          const nodes = Array.isArray(path.nodes) ? path.nodes.map(text) : [];
          const used = text(path.used);
          graph.paths.push({ name: `${nodes.join(" ")}${used === "-" ? "" : ` (${used})`}`, nodes });
        }
      }
    }
  };
  await Promise.all(state.sources.filter((source) => source.absent === null).map((source) => one(source.name, source.overview?.role ?? "")));
  return graph;
}

const COLOURS: Record<string, string> = {
  party: "#7c3aed",
  member: "#2563eb",
  router: "#64748b",
  attesting: "#0f766e",
  gateway: "#2563eb",
  node: "#0f766e",
  other: "#94a3b8",
};

export const map: Screen = (into, parameters) => {
  const place = h("div", { class: "map", role: "img", "aria-label": "Map; the table below has the same links" });
  const choice = h("select", { id: "path" });
  const legend = h("p", { class: "legend" });
  const table = new Table<Link>({
    name: "Links",
    isBad: (link) => !link.well,
    columns: [
      { title: "from", value: (link) => link.from },
      { title: "to", value: (link) => link.to },
      { title: "kind", value: (link) => link.kind },
      { title: "state", value: (link) => link.state },
      { title: "round trip, ms", value: (link) => link.roundTrip },
      { title: "loss, ppm", value: (link) => link.loss },
    ],
  });
  const pathLabel = h("label", { for: "path" }, "Path of a flow ", choice);
  into.append(heading("h1", "Map"), h("form", { class: "ask" }, pathLabel), place, legend, heading("h2", "Links"), table.element);
  pathLabel.hidden = true;

  const ink = getComputedStyle(document.body).color;
  const drawing = cytoscape({
    container: place,
    style: [
      { selector: "node", style: { label: "data(name)", color: ink, "background-color": "data(colour)", "font-size": 11, width: 22, height: 22, "text-valign": "bottom", "text-margin-y": 3 } },
      { selector: "edge", style: { width: 2, "line-color": "#94a3b8", "curve-style": "bezier", label: "data(label)", color: ink, "font-size": 9, "text-rotation": "autorotate", "text-margin-y": -7 } },
      { selector: "edge.bad", style: { "line-color": "#dc2626", "line-style": "dashed" } },
      { selector: ".path", style: { "line-color": "#16a34a", width: 5, "border-width": 4, "border-color": "#16a34a" } },
    ],
  });
  let [shape, isOver, isLoading] = ["", false, false];
  let wanted = parameters.get("path") ?? "";

  const show = (graph: Graph): void => {
    const nodes = [...graph.nodes];
    const now = JSON.stringify([nodes.map(([name]) => name).sort(), graph.links.map(({ from, to, kind }) => [from, to, kind]).sort()]);
    // A name may be any text, that of a link too.
    const nodeId = (name: string): string => `node ${name}`;
    const id = ({ from, to, kind }: Link): string => JSON.stringify(["link", kind, from, to]);
    const label = ({ roundTrip }: Link): string => (roundTrip === null ? "" : `${roundTrip.toFixed(1)} ms`);
    if (now !== shape) {
      drawing.elements().remove();
      drawing.add(nodes.map(([name, kind]) => ({ group: "nodes" as const, data: { id: nodeId(name), name, colour: COLOURS[kind] ?? COLOURS.other! } })));
      drawing.add(graph.links.map((link) => ({ group: "edges" as const, data: { id: id(link), source: nodeId(link.from), target: nodeId(link.to), label: label(link) } })));
      // The same network looks the same each time: no layout that begins at random.
      drawing.layout({ name: "cose", animate: false, randomize: false, nodeDimensionsIncludeLabels: true, idealEdgeLength: () => 90, padding: 20 }).run();
      shape = now;
      const kinds = [...new Set(nodes.map(([, kind]) => kind))];
      replace(legend, ...kinds.flatMap((kind) => [h("span", { class: `dot ${kind}`, "aria-hidden": "true" }), h("span", {}, kind)]));
    }
    for (const link of graph.links) {
      const edge = drawing.getElementById(id(link));
      edge.data("label", label(link));
      edge.toggleClass("bad", !link.well);
    }
    const names = graph.paths.map((path) => path.name);
    const options = [...choice.options].map((option) => option.value);
    if (JSON.stringify(options) !== JSON.stringify(["", ...names])) {
      replace(choice, h("option", { value: "" }, "none"), ...names.map((name) => h("option", { value: name }, name)));
      const still = graph.paths.find((path) => path.name === wanted || path.nodes.join(" ") === wanted);
      choice.value = still?.name ?? "";
    }
    pathLabel.hidden = names.length === 0;
    drawing.elements().removeClass("path");
    const path = graph.paths.find((one) => one.name === choice.value);
    path?.nodes.forEach((node, at) => {
      drawing.getElementById(nodeId(node)).addClass("path");
      const next = path.nodes[at + 1];
      const link = graph.links.find(({ from, to, kind }) => kind === "link" && ((from === node && to === next) || (to === node && from === next)));
      if (link !== undefined) drawing.getElementById(id(link)).addClass("path");
    });
    table.rows = graph.links;
  };
  const load = async (): Promise<void> => {
    if (isLoading) return;
    isLoading = true;
    const graph = await read();
    isLoading = false;
    if (!isOver) show(graph);
  };
  choice.addEventListener("change", () => {
    wanted = choice.value.replace(/ \(.*\)$/, "");
    keep({ path: wanted });
    void load();
  });
  void load();
  let known = state.isKnown;
  const unwatch = state.watch(() => {
    if (known !== state.isKnown) {
      known = state.isKnown;
      void load();
    }
  });
  const timer = setInterval(() => void load(), INTERVAL);
  return () => {
    isOver = true;
    unwatch();
    clearInterval(timer);
    drawing.destroy();
  };
};
