"use strict";
/*
Lets each change of Azurite's tables outlive `kill -9`. Node loads this module before Azurite.

Azurite keeps its tables in LokiJS, which writes the whole database every five seconds. Here each
change also goes into a journal beside it, before the answer of its request leaves.

1. A change is a line of JSON in `changes`: a document or a collection that came, changed or went.
2. Before a response sends its first byte, all changes go to the journal as one line. Azurite works
   on a batch without waiting for I/O, so no line has a part of a batch.
3. When LokiJS saves, the journal so far becomes an older one, which is removed once the new database
   is in place.
4. At a start the lines of both journals are applied to the database. To apply a change again does no
   harm. A line without an end was cut off by the kill, and its request was not answered.
*/
const fs = require("fs");
const http = require("http");
const Loki = require("module").createRequire(process.argv[1])("lokijs");

let journal = "";
let changes = [];

// 1. Record.
const { insertOne, update, remove } = Loki.Collection.prototype;
Object.assign(Loki.Collection.prototype, {
  insertOne(...given) {
    const document = insertOne.apply(this, given);
    changes.push(JSON.stringify({ in: this.name, put: document }));
    return document;
  },
  update(given) {
    const document = update.call(this, given);
    changes.push(JSON.stringify({ in: this.name, put: document }));
    return document;
  },
  remove(given) {
    changes.push(JSON.stringify({ in: this.name, remove: given.$loki }));
    return remove.call(this, given);
  },
});

const { addCollection, removeCollection } = Loki.prototype;
Object.assign(Loki.prototype, {
  addCollection(...given) {
    const collection = addCollection.apply(this, given);
    changes.push(`{"add":${JSON.stringify(collection, this.serializeReplacer)}}`);
    return collection;
  },
  removeCollection(name) {
    changes.push(JSON.stringify({ drop: name }));
    removeCollection.call(this, name);
  },
});

// 2. Write before the answer.
function write() {
  if (journal && changes.length) {
    fs.appendFileSync(journal, `[${changes.join()}]\n`);
    changes = [];
  }
}

const { writeHead } = http.ServerResponse.prototype;
http.ServerResponse.prototype.writeHead = function (...given) {
  write();
  return writeHead.apply(this, given);
};

const { saveDatabase, loadDatabase } = Loki.LokiFsAdapter.prototype;
Object.assign(Loki.LokiFsAdapter.prototype, {
  // 3. The content has every change so far.
  saveDatabase(name, content, callback) {
    journal = `${name}.journal`;
    const older = `${journal}~`;
    write();
    if (fs.existsSync(journal)) {
      fs.appendFileSync(older, fs.readFileSync(journal));
      fs.rmSync(journal);
    }
    saveDatabase.call(this, name, content, (error) => {
      if (!error) fs.rmSync(older, { force: true });
      callback(error);
    });
  },

  // 4. Apply.
  loadDatabase(name, callback) {
    loadDatabase.call(this, name, (content) => {
      const paths = [`${name}.journal~`, `${name}.journal`].filter((path) => fs.existsSync(path));
      if (typeof content !== "string" || !paths.length) return callback(content);
      const database = JSON.parse(content);
      for (const path of paths) {
        const lines = fs.readFileSync(path, "utf8").split("\n").slice(0, -1);
        apply(database, lines.flatMap((line) => JSON.parse(line)));
      }
      callback(database);
    });
  },
});

function apply(database, given) {
  const collections = new Map(database.collections.map((entry) => [entry.name, entry]));
  const documents = new Map();
  for (const [name, { data }] of collections) {
    documents.set(name, new Map(data.map((document) => [document.$loki, document])));
  }
  for (const change of given) {
    if (change.drop) {
      collections.delete(change.drop);
    } else if (change.add) {
      const { name } = change.add;
      if (collections.has(name)) continue;
      collections.set(name, change.add);
      documents.set(name, new Map());
    } else if (change.put) {
      documents.get(change.in).set(change.put.$loki, change.put);
    } else {
      documents.get(change.in).delete(change.remove);
    }
  }
  for (const [name, collection] of collections) {
    const byNumber = [...documents.get(name).values()].sort((a, b) => a.$loki - b.$loki);
    collection.data = byNumber;
    collection.maxId = byNumber.reduce((most, { $loki }) => Math.max(most, $loki), collection.maxId);
  }
  database.collections = [...collections.values()];
  database.databaseVersion = 0; // LokiJS then builds its indices again
}
