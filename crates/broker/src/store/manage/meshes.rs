//! Meshes and their members.

use semel_delivery::relay::store::sql::{Row, StoreError};

use super::{
    ManageError, MemberInfo, MemberWish, MeshInfo, MeshLimits, MeshWish, Put, Which, need_mesh,
    open_interval, put_line, shown, tell_change,
};
use crate::identity::Role;
use crate::limits::TOKENS_MAX;
use crate::store::{Store, Tx, first_int, time};

impl Store {
    /// Makes a mesh, or says again what it may.
    pub(crate) async fn put_mesh(&self, mesh: &str, wish: MeshWish) -> Result<Put, ManageError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        let sql = "SELECT id FROM mesh WHERE id = $1 AND deleted_at IS NULL";
        let was_there = !tx.run(sql, vec![mesh.into()]).await?.is_empty();
        let sql = "INSERT INTO mesh (id, created_at) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING";
        tx.run(sql, vec![mesh.into(), now.into()]).await?;
        let sql = "UPDATE mesh SET deleted_at = NULL, bytes_max = $2, search = $3 WHERE id = $1";
        tx.run(sql, vec![mesh.into(), wish.bytes_max.into(), i64::from(wish.search).into()]).await?;
        tell_change(&mut tx).await?;
        let bytes = wish.bytes_max.map_or_else(|| "no limit".to_owned(), |bytes| format!("{bytes} bytes"));
        let search = if wish.search { "search" } else { "no search" };
        self.note(&mut tx, ("put-mesh", mesh, "", &format!("{bytes}, {search}"))).await?;
        tx.commit().await?;
        Ok(if was_there { Put::Kept } else { Put::Created })
    }

    /// Removes a mesh with its members, tokens, topics and webhooks. Ids stay remembered, and messages kept, until they
    /// expire; nobody can read them.
    pub(crate) async fn remove_mesh(&self, mesh: &str) -> Result<(), ManageError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        // Before the lines, as whoever subscribes does.
        let sql = "SELECT member FROM member WHERE mesh_id = $1 ORDER BY member /*LOCK*/";
        tx.run(sql, vec![mesh.into()]).await?;
        let sql =
            "SELECT line, next_number FROM line WHERE mesh_id = $1 ORDER BY mesh_id, kind, ref /*LOCK*/";
        for row in tx.run(sql, vec![mesh.into()]).await? {
            let (line, next) = (row.int(0)?, row.int(1)?);
            let sql = "UPDATE topic_subscription SET until = $2 WHERE line = $1 AND until IS NULL";
            tx.run(sql, vec![line.into(), next.into()]).await?;
        }
        for sql in [
            "UPDATE line SET deleted_at = coalesce(deleted_at, $2), webhooks = 0 WHERE mesh_id = $1",
            "UPDATE member SET left_at = coalesce(left_at, $2) WHERE mesh_id = $1",
            "UPDATE webhook SET deleted_at = coalesce(deleted_at, $2), fence = fence + 1 WHERE mesh_id = $1",
            "UPDATE mesh SET deleted_at = coalesce(deleted_at, $2) WHERE id = $1",
        ] {
            tx.run(sql, vec![mesh.into(), now.into()]).await?;
        }
        for sql in [
            "DELETE FROM member_token WHERE mesh_id = $1",
            "UPDATE delivery_queue SET status = 'dead', last_error = 'the mesh was removed' WHERE status = 'pending' \
             AND webhook IN (SELECT webhook FROM webhook WHERE mesh_id = $1)",
            "DELETE FROM delivery_waiting WHERE webhook IN (SELECT webhook FROM webhook WHERE mesh_id = $1)",
        ] {
            tx.run(sql, vec![mesh.into()]).await?;
        }
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("remove-mesh", mesh, "", "")).await?;
        Ok(tx.commit().await?)
    }

    /// Meshes, or the one of this name.
    pub(crate) async fn meshes(&self, which: Which<'_>) -> Result<Vec<MeshInfo>, StoreError> {
        let sql = format!(
            "SELECT e.id, e.created_at, e.bytes_max, e.search FROM mesh e WHERE e.deleted_at IS NULL {} \
             ORDER BY e.id LIMIT $1",
            which.condition("e.id", 2)
        );
        let mut found = Vec::new();
        for row in self.read(&sql, vec![which.limit(), which.name()]).await? {
            let mesh = row.text(0)?;
            let (bytes, _) = self.room(&mesh).await?;
            let limits = MeshLimits { bytes: row.maybe_int(2)? };
            found.push(MeshInfo {
                mesh,
                created_at: shown(row.int(1)?),
                limits,
                search: row.int(3)? != 0,
                bytes,
            });
        }
        Ok(found)
    }

    /// Makes a member, or says again what it is. What is not said stays.
    pub(crate) async fn put_member(
        &self,
        mesh: &str,
        member: &str,
        wish: &MemberWish,
    ) -> Result<Put, ManageError> {
        check_tokens(wish.tokens.as_deref().unwrap_or_default())?;
        check_tokens(&wish.more_tokens)?;
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        need_mesh(&mut tx, mesh).await?;
        let sql = "SELECT member FROM member WHERE mesh_id = $1 AND member = $2 AND left_at IS NULL /*LOCK*/";
        let was_there = !tx.run(sql, vec![mesh.into(), member.into()]).await?.is_empty();
        let role = wish.role;
        let sql = "INSERT INTO member (mesh_id, member, role, joined_at) VALUES ($1, $2, $3, $4) \
            ON CONFLICT (mesh_id, member) DO NOTHING RETURNING member";
        let usual = role.unwrap_or(Role::Member).name();
        let args = vec![mesh.into(), member.into(), usual.into(), now.into()];
        if tx.run(sql, args).await?.is_empty() {
            // Whoever comes back has no rights from before.
            let role = role.or((!was_there).then_some(Role::Member)).map(|role| role.name().to_owned());
            let sql = "UPDATE member SET role = coalesce($3, role), left_at = NULL WHERE mesh_id = $1 AND member = $2";
            tx.run(sql, vec![mesh.into(), member.into(), role.into()]).await?;
        }
        // Whoever comes back does not see what was sent while another had the name.
        let (line, next, _) = put_line(&mut tx, mesh, "member", member, "members", now).await?;
        open_interval(&mut tx, line, member, next).await?;
        let mut tokens = match &wish.tokens {
            Some(tokens) => tokens.clone(),
            None => tokens_of(&mut tx, mesh, member).await?,
        };
        tokens.extend(wish.more_tokens.iter().cloned());
        tokens.sort_unstable();
        tokens.dedup();
        check_tokens(&tokens)?;
        put_tokens(&mut tx, mesh, member, &tokens).await?;
        tell_change(&mut tx).await?;
        let said = if was_there { "role kept" } else { usual };
        let detail = format!("{}, tokens {}", role.map_or(said, Role::name), tokens.len());
        self.note(&mut tx, ("put-member", mesh, member, &detail)).await?;
        tx.commit().await?;
        Ok(if was_there { Put::Kept } else { Put::Created })
    }

    /// Removes a member with its tokens and subscriptions.
    pub(crate) async fn remove_member(&self, mesh: &str, member: &str) -> Result<(), ManageError> {
        let mut tx = self.db.begin().await?;
        let now = time(&mut tx).await?;
        // Whoever subscribes it locks it, too: what is found now is all there is.
        let sql = "SELECT member FROM member WHERE mesh_id = $1 AND member = $2 /*LOCK*/";
        tx.run(sql, vec![mesh.into(), member.into()]).await?;
        let sql = "SELECT l.line, l.next_number FROM line l JOIN topic_subscription s ON s.line = l.line \
            WHERE l.mesh_id = $1 AND s.member = $2 AND s.until IS NULL ORDER BY l.mesh_id, l.kind, l.ref /*LOCK*/";
        for row in tx.run(sql, vec![mesh.into(), member.into()]).await? {
            let sql =
                "UPDATE topic_subscription SET until = $3 WHERE line = $1 AND member = $2 AND until IS NULL";
            tx.run(sql, vec![row.int(0)?.into(), member.into(), row.int(1)?.into()]).await?;
        }
        for sql in [
            "UPDATE line SET deleted_at = coalesce(deleted_at, $3) WHERE mesh_id = $1 AND kind = 'member' AND ref = $2",
            "UPDATE member SET left_at = coalesce(left_at, $3) WHERE mesh_id = $1 AND member = $2",
        ] {
            tx.run(sql, vec![mesh.into(), member.into(), now.into()]).await?;
        }
        put_tokens(&mut tx, mesh, member, &[]).await?;
        tell_change(&mut tx).await?;
        self.note(&mut tx, ("remove-member", mesh, member, "")).await?;
        Ok(tx.commit().await?)
    }

    /// Members of a mesh, or the one of this name.
    pub(crate) async fn members(&self, mesh: &str, which: Which<'_>) -> Result<Vec<MemberInfo>, StoreError> {
        let sql = format!(
            "SELECT m.member, m.role, m.joined_at, (SELECT count(*) FROM member_token t WHERE t.mesh_id = m.mesh_id \
             AND t.member = m.member) FROM member m WHERE m.mesh_id = $1 AND m.left_at IS NULL {} \
             ORDER BY m.member LIMIT $2",
            which.condition("m.member", 3)
        );
        let args = vec![mesh.into(), which.limit(), which.name()];
        let info = |row: &Row| {
            let (member, role) = (row.text(0)?, row.text(1)?);
            Ok(MemberInfo { member, role, joined_at: shown(row.int(2)?), tokens: row.int(3)? })
        };
        self.read(&sql, args).await?.iter().map(info).collect()
    }
}

fn check_tokens(tokens: &[String]) -> Result<(), ManageError> {
    let is_sha256 = |token: &String| {
        token.len() == 64 && token.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    if tokens.len() > TOKENS_MAX {
        return Err(ManageError::Refused(format!("a member has at most {TOKENS_MAX} live tokens")));
    }
    match tokens.iter().all(is_sha256) {
        true => Ok(()),
        false => Err(ManageError::Refused("token_sha256 has 64 hex digits in lower case each".to_owned())),
    }
}

async fn tokens_of(tx: &mut Tx, mesh: &str, member: &str) -> Result<Vec<String>, StoreError> {
    let sql = "SELECT token_sha256 FROM member_token WHERE mesh_id = $1 AND member = $2";
    tx.run(sql, vec![mesh.into(), member.into()]).await?.iter().map(|row| row.text(0)).collect()
}

/// Replaces the tokens of a member whose row was written in this transaction, so that they are counted anew.
async fn put_tokens(tx: &mut Tx, mesh: &str, member: &str, tokens: &[String]) -> Result<(), ManageError> {
    tx.run("DELETE FROM member_token WHERE mesh_id = $1 AND member = $2", vec![mesh.into(), member.into()])
        .await?;
    for token in tokens {
        let sql = "INSERT INTO member_token (token_sha256, mesh_id, member) VALUES ($1, $2, $3) \
            ON CONFLICT (token_sha256) DO NOTHING";
        tx.run(sql, vec![token.into(), mesh.into(), member.into()]).await?;
        let sql =
            "SELECT count(*) FROM member_token WHERE token_sha256 = $1 AND mesh_id = $2 AND member = $3";
        if first_int(&tx.run(sql, vec![token.into(), mesh.into(), member.into()]).await?)? == 0 {
            return Err(ManageError::Refused(
                "a token belongs to another member: make a fresh one".to_owned(),
            ));
        }
    }
    Ok(())
}
