"use strict";
/*
Keeps web pages out of Azurite, whose key is public. Node loads this module before Azurite.

DNS rebinding can give our address to a name of another site, so each request must name this
machine. A browser names the page's origin in each request that could change something, so a request
with Origin is refused. Over HTTPS the certificate keeps other names out.
*/
const http = require("http");

const { emit } = http.Server.prototype;
http.Server.prototype.emit = function (event, request, response) {
  if (event !== "request") return emit.apply(this, arguments);
  const ours = /^(127\.0\.0\.1|localhost)(:\d+)?$/i.test(request.headers.host);
  if (ours && !("origin" in request.headers)) return emit.apply(this, arguments);
  response.writeHead(403).end("this port answers programs of this machine, and no page of a browser");
  return true;
};
