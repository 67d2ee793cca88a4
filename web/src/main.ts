// The frame: which screen is shown, whether the console answers, and where else one can go.

import "uplot/dist/uPlot.min.css";
import "./style.css";
import { h, replace } from "./dom";
import { showHints } from "./hints";
import { laboratory } from "./laboratory";
import { address, here } from "./route";
import { attacks } from "./screens/attacks";
import { capabilities } from "./screens/capabilities";
import { events } from "./screens/events";
import { experiments } from "./screens/experiments";
import { map } from "./screens/map";
import { overlay } from "./screens/overlay";
import { overview } from "./screens/overview";
import { routes } from "./screens/routes";
import { sides } from "./screens/sides";
import { source } from "./screens/source";
import { why } from "./screens/why";
import { state } from "./state";

/** Draws itself into an element, and returns what ends it. */
export type Screen = (into: HTMLElement, parameters: URLSearchParams) => () => void;

const SCREENS: Record<string, { title: string; screen: Screen; isHidden?: boolean; isOfLab?: boolean; isOrdered?: boolean }> = {
  overview: { title: "Overview", screen: overview },
  why: { title: "Why", screen: why },
  routes: { title: "Routes", screen: routes },
  sides: { title: "Two sides", screen: sides, isOfLab: true },
  map: { title: "Map", screen: map },
  overlay: { title: "Overlay", screen: overlay },
  capabilities: { title: "Capabilities", screen: capabilities },
  events: { title: "Events", screen: events },
  experiments: { title: "Experiments", screen: experiments, isOrdered: true },
  attacks: { title: "Attacks", screen: attacks, isOrdered: true },
  source: { title: "Role", screen: source, isHidden: true },
};

const screenElement = document.querySelector<HTMLElement>("#screen")!;
const navigation = document.querySelector<HTMLElement>("#navigation")!;
const linkState = document.querySelector<HTMLOutputElement>("#link-state")!;

let end = (): void => {};
/** Whether this console is of a laboratory that takes orders, as its document shows. */
let takesOrders = false;

function draw(): void {
  end();
  const { screen: name, parameters } = here();
  const known = Object.hasOwn(SCREENS, name) ? SCREENS[name] : undefined;
  drawNavigation();
  replace(screenElement);
  document.title = `${known?.title ?? "Not found"} - Wayleave`;
  if (known === undefined) {
    replace(screenElement, h("h1", {}, "There is no such screen"), h("p", {}, h("a", { href: address("overview") }, "Overview")));
    end = () => {};
    return;
  }
  end = known.screen(screenElement, parameters);
}

function drawNavigation(): void {
  const { screen: name } = here();
  const isShown = ({ isHidden, isOfLab, isOrdered }: (typeof SCREENS)[string]): boolean =>
    isHidden !== true && (isOfLab !== true || state.isLab) && (isOrdered !== true || takesOrders);
  const links = Object.entries(SCREENS).filter(([, screen]) => isShown(screen));
  replace(
    navigation,
    ...links.map(([of, { title }]) => h("a", { href: address(of), "aria-current": of === name ? "page" : "false" }, title)),
  );
}

let isLab = false;

function drawState(): void {
  if (isLab !== state.isLab) {
    isLab = state.isLab;
    drawNavigation();
    if (isLab) {
      void laboratory().then(
        () => {
          takesOrders = true;
          drawNavigation();
        },
        () => {}, // the demonstration's has none
      );
    }
  }
  const well = state.sources.filter((source) => source.absent === null && source.overview?.ready === true).length;
  linkState.className = state.isConnected ? "" : "bad";
  linkState.textContent = !state.isConnected
    ? "the console does not answer; what is shown may be old"
    : `${well} of ${state.sources.length} roles ready`;
}

window.addEventListener("hashchange", () => {
  draw();
  screenElement.focus();
});
state.watch(drawState);
state.watch(showHints(document.querySelector("header")!));
state.begin();
draw();
