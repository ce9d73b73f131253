// What people do: post, like, comment, delete. Each runs inside the transaction that semel commits together with the key's record,
// and writes there what the others are to be told.
import type { Pool, PoolClient } from "pg";
import type { Reply } from "semel/server";

/** Who asks for what, under which number of the client's own. */
export interface Call {
  me: string;
  clientTxId: string;
  post: string;
  body: any;
}

export type Action = (tx: PoolClient, call: Call) => Promise<Reply>;

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const refuse = (status: number, error: string): Reply => ({ status, json: { error } });
const GONE = refuse(404, "That post is not there any more");

const POST = `SELECT p.id, p.author, n.name, p.words, p.made_at,
    (SELECT coalesce(json_agg(l.person), '[]') FROM liked l WHERE l.post = p.id) AS likes,
    (SELECT coalesce(json_agg(json_build_object('id', c.id, 'author', c.author, 'name', cn.name, 'words', c.words) ORDER BY c.made_at, c.id), '[]')
     FROM comment c JOIN person cn ON cn.id = c.author WHERE c.post = p.id) AS comments
  FROM post p JOIN person n ON n.id = p.author`;

/** The newest posts, with all that belongs to them. */
export async function readFeed(pool: Pool): Promise<unknown[]> {
  return (await pool.query(`${POST} ORDER BY p.made_at DESC LIMIT 100`)).rows;
}

/** Says who acts: the row policies ask for it. It holds for this transaction only. */
export async function actAs(tx: PoolClient, me: string): Promise<void> {
  await tx.query("SELECT set_config('feed.me', $1, true)", [me]);
}

/** Changes of one post come one after the other, so that what is told of it is told in their order. */
async function lockPost(tx: PoolClient, post: string): Promise<boolean> {
  if (!UUID.test(post)) return false;
  await tx.query("SELECT pg_advisory_xact_lock(1, hashtext($1))", [post]);
  return (await tx.query("SELECT FROM post WHERE id = $1", [post])).rowCount === 1;
}

async function tell(tx: PoolClient, call: Call, body: unknown): Promise<void> {
  await tx.query("INSERT INTO event (client_tx_id, body) VALUES ($1, $2)", [call.clientTxId, JSON.stringify(body)]);
}

/** Tells how a post stands now, and answers with it. */
async function tellPost(tx: PoolClient, call: Call, post: string, status: number): Promise<Reply> {
  const [row] = (await tx.query(`${POST} WHERE p.id = $1`, [post])).rows;
  await tell(tx, call, { post: row });
  return { status, json: row };
}

function wordsOf(body: any): string | undefined {
  const words = typeof body?.words === "string" ? body.words.trim() : "";
  return words.length >= 1 && words.length <= 2000 ? words : undefined;
}

const BAD_WORDS = refuse(400, "A text has 1 to 2000 characters, and its id is a UUID in lower case");

/** The id comes from the client, so that a post can be commented on before it was sent. */
const createPost: Action = async (tx, call) => {
  const words = wordsOf(call.body);
  const { id } = call.body ?? {};
  if (!words || !UUID.test(id)) return BAD_WORDS;
  const made = await tx.query("INSERT INTO post (id, author, words) VALUES ($1, $2, $3) ON CONFLICT (id) DO NOTHING", [id, call.me, words]);
  if (made.rowCount === 0) return refuse(403, "There is another post with this id");
  return tellPost(tx, call, id, 201);
};

const likePost: Action = async (tx, call) => {
  if (!(await lockPost(tx, call.post))) return GONE;
  await tx.query("INSERT INTO liked (post, person) VALUES ($1, $2) ON CONFLICT DO NOTHING", [call.post, call.me]);
  return tellPost(tx, call, call.post, 200);
};

const createComment: Action = async (tx, call) => {
  const words = wordsOf(call.body);
  const { id } = call.body ?? {};
  if (!words || !UUID.test(id)) return BAD_WORDS;
  if (!(await lockPost(tx, call.post))) return GONE;
  const sql = "INSERT INTO comment (id, post, author, words) VALUES ($1, $2, $3, $4) ON CONFLICT (id) DO NOTHING";
  if ((await tx.query(sql, [id, call.post, call.me, words])).rowCount === 0) return refuse(403, "There is another comment with this id");
  return tellPost(tx, call, call.post, 201);
};

/** The policies let only its author delete a post; somebody else's is as if it were not there. */
const deletePost: Action = async (tx, call) => {
  if (!(await lockPost(tx, call.post))) return GONE;
  const deleted = await tx.query("DELETE FROM post WHERE id = $1", [call.post]);
  if (deleted.rowCount === 0) return refuse(403, "Only its author deletes a post");
  await tell(tx, call, { gone: call.post });
  return { status: 200, json: { gone: call.post } };
};

/** Every action, its method and path. The name is the endpoint that keys belong to, and the outbox's `operation`. */
export const actions: Record<string, { method: "POST" | "DELETE"; path: string; run: Action }> = {
  create_post: { method: "POST", path: "/api/posts", run: createPost },
  like_post: { method: "POST", path: "/api/posts/:post/like", run: likePost },
  create_comment: { method: "POST", path: "/api/posts/:post/comments", run: createComment },
  delete_post: { method: "DELETE", path: "/api/posts/:post", run: deletePost },
};
