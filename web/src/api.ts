// What the console's server says. It only reads: nothing here sends anything but GET.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Fields = { [name: string]: Json };

export interface Row {
  well: boolean;
  cells: string[];
}

export interface Overview {
  role?: string;
  title: string;
  ready: boolean;
  problems: string[];
  columns: string[];
  rows: Row[];
  counts: string[];
}

export interface Source {
  name: string;
  at: string;
  overview: Overview | null;
  absent: string | null;
  answered: number | null;
}

export interface RoleEvent {
  source: string;
  time: string;
  unix: number;
  what: Fields;
}

/** Why there is no answer. */
export class NoAnswer extends Error {}

/** A page of a source, with its parameters. */
export async function page(source: string, name: string, parameters: Record<string, string> = {}): Promise<Fields> {
  const query = new URLSearchParams(parameters).toString();
  const path = `/api/v1/source/${encodeURIComponent(source)}/${name}${query === "" ? "" : `?${query}`}`;
  let answer: Response;
  try {
    answer = await fetch(path, { headers: { accept: "application/json" } });
  } catch {
    throw new NoAnswer("the console does not answer");
  }
  const value = (await answer.json().catch(() => ({}))) as Fields;
  if (!answer.ok) throw new NoAnswer(typeof value.error === "string" ? value.error : `HTTP ${answer.status}`);
  return value;
}

/** All that is told as it happens. */
export interface Told {
  sources: (all: Source[], isLab: boolean) => void;
  source: (one: Source) => void;
  events: (all: RoleEvent[]) => void;
  event: (one: RoleEvent) => void;
  connected: (isUp: boolean) => void;
}

/** Listens until the page is left. The browser connects again by itself, and everything is told anew. */
export function listen(told: Told): void {
  const stream = new EventSource("/api/v1/stream");
  const on = <T>(name: string, take: (value: T) => void): void =>
    stream.addEventListener(name, (event) => take(JSON.parse((event as MessageEvent<string>).data) as T));
  on<{ sources: Source[]; lab: boolean }>("sources", (value) => told.sources(value.sources, value.lab));
  on<Source>("source", told.source);
  on<RoleEvent[]>("events", told.events);
  on<RoleEvent>("event", told.event);
  stream.addEventListener("open", () => told.connected(true));
  stream.addEventListener("error", () => {
    told.connected(false);
    // A browser gives up where the answer is no stream, as while the console starts again behind a proxy.
    if (stream.readyState === EventSource.CLOSED) {
      setTimeout(() => listen(told), 1000);
    }
  });
}
