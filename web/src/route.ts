// Addresses: `#/screen?name=value`. An address is stable and can be sent to somebody.

export interface Address {
  screen: string;
  parameters: URLSearchParams;
}

export function here(): Address {
  const hash = location.hash.replace(/^#\/?/, "");
  const [screen = "", query = ""] = hash.split("?", 2);
  return { screen: screen === "" ? "overview" : screen, parameters: new URLSearchParams(query) };
}

export function address(screen: string, parameters: Record<string, string> = {}): string {
  const query = new URLSearchParams(parameters).toString();
  return `#/${screen}${query === "" ? "" : `?${query}`}`;
}

/** Changes the parameters of the address, and draws nothing anew. */
export function keep(parameters: Record<string, string>): void {
  const { screen, parameters: all } = here();
  for (const [name, value] of Object.entries(parameters)) {
    if (value === "") all.delete(name);
    else all.set(name, value);
  }
  history.replaceState(null, "", address(screen, Object.fromEntries(all)));
}

export function go(screen: string, parameters: Record<string, string>): void {
  location.hash = address(screen, parameters);
}
