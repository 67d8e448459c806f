// Which addresses a page may lead to because the server's data says so.

/** Whether an address is a path on this server: "//host" and "/\host" lead elsewhere. */
export function isOwnPath(address) {
  return typeof address === "string" && /^\/(?![/\\])/.test(address);
}
