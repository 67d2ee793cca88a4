// What the console's server says. It only reads: nothing here sends anything but GET.

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
export type Fields = { [name: string]: Json };

export interface Row {
  well: boolean;
  cells: string[];
}

export interface Overview {
  role: string;
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

/** What a role says may have any form: what is not of the expected one is left out, so that one role's fault is not another's. */
export const textOf = (value: unknown): string => (typeof value === "string" ? value : "");
export const textsOf = (value: unknown): string[] => (Array.isArray(value) ? value.filter((one): one is string => typeof one === "string") : []);
export const fieldsOf = (value: unknown): Fields | null => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : null);
/** A value as a list of objects. */
export const rowsOf = (value: unknown): Fields[] => (Array.isArray(value) ? value.filter((one) => fieldsOf(one) !== null) : []) as Fields[];

function overviewOf(value: unknown): Overview | null {
  const of = fieldsOf(value);
  if (of === null) return null;
  return {
    role: textOf(of.role),
    title: textOf(of.title),
    ready: of.ready === true,
    problems: textsOf(of.problems),
    columns: textsOf(of.columns),
    rows: rowsOf(of.rows).map((row) => ({ well: row.well === true, cells: textsOf(row.cells) })),
    counts: textsOf(of.counts),
  };
}

function sourceOf(value: unknown): Source[] {
  const of = fieldsOf(value);
  if (of === null || typeof of.name !== "string") return [];
  return [
    {
      name: of.name,
      at: textOf(of.at),
      overview: overviewOf(of.overview),
      absent: typeof of.absent === "string" ? of.absent : null,
      answered: typeof of.answered === "number" ? of.answered : null,
    },
  ];
}

function eventOf(value: unknown): RoleEvent[] {
  const of = fieldsOf(value);
  const what = fieldsOf(of?.what);
  if (of === null || what === null || typeof of.time !== "string" || typeof of.unix !== "number") return [];
  return [{ source: textOf(of.source), time: of.time, unix: of.unix, what }];
}

/** Why there is no answer. */
export class NoAnswer extends Error {}

/** A page of a source, with its parameters. */
export async function page(source: string, name: string, parameters: Record<string, string> = {}): Promise<Fields> {
  const query = new URLSearchParams(parameters).toString();
  const path = `/api/v1/source/${encodeURIComponent(source)}/${name}${query === "" ? "" : `?${query}`}`;
  return answerOf(fetch(path, { headers: { accept: "application/json" } }));
}

/** What a server answers as JSON. */
export async function answerOf(asked: Promise<Response>): Promise<Fields> {
  let answer: Response;
  try {
    answer = await asked;
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
  news: (some: RoleEvent[]) => void;
  connected: (isUp: boolean) => void;
}

/** Listens until the page is left. The browser connects again by itself, and everything is told anew. */
export function listen(told: Told): void {
  const stream = new EventSource("/api/v1/stream");
  const on = <T>(name: string, take: (value: T) => void): void =>
    stream.addEventListener(name, (event) => take(JSON.parse((event as MessageEvent<string>).data) as T));
  on<Fields>("sources", (value) => told.sources(rowsOf(value.sources).flatMap(sourceOf), value.lab === true));
  on<Fields>("source", (value) => sourceOf(value).forEach(told.source));
  on<Json[]>("events", (value) => told.events(rowsOf(value).flatMap(eventOf)));
  on<Json[]>("news", (value) => told.news(rowsOf(value).flatMap(eventOf)));
  stream.addEventListener("open", () => told.connected(true));
  stream.addEventListener("error", () => {
    told.connected(false);
    // A browser gives up where the answer is no stream, as while the console starts again behind a proxy.
    if (stream.readyState === EventSource.CLOSED) {
      stream.close();
      setTimeout(() => listen(told), 1000);
    }
  });
}
